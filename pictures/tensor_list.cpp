#include "pictures/picture.h"
#include "pictures/rank_table.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace shardwise {

namespace {

using detail::with_commas;

constexpr size_t kLongestPlacements = 48;
constexpr int64_t kDetailSlices = 16;  // of a tensor that a line leads to

std::string placements_in_brief(const NamedTensor& tensor) {
  if (!tensor.layout) return "ordinary tensor";
  std::string text = to_string(tensor.layout->placements());
  if (tensor.layout->in_pieces() && !tensor.layout->is_ragged())
    text = fmt::format("EnumerableShard of {} pieces", tensor.layout->pieces().size());
  if (text.size() > kLongestPlacements) text = text.substr(0, kLongestPlacements - 3) + "...";
  return text;
}

/// Adds up what ranks hold, and makes the lines.
class TensorList {
 public:
  TensorList(const std::vector<NamedTensor>& tensors, int64_t rank) : tensors_(tensors) {
    for (const NamedTensor& tensor : tensors)
      if (tensor.layout)
        for (const int64_t member : tensor.layout->grid().ranks)
          if (places_.try_emplace(member, held_.size()).second) held_.emplace_back(member, 0);
    if (held_.empty()) held_.emplace_back(rank, 0);
  }

  Picture run() && {
    for (const NamedTensor& tensor : tensors_) add(tensor);
    Picture picture;
    picture.title = fmt::format("{} tensor{}, {} bytes; {} bytes on {}", tensors_.size(),
                                tensors_.size() == 1 ? "" : "s", with_commas(total_), with_commas(on_all_ranks()),
                                held_.size() == 1 ? "1 rank" : fmt::format("{} ranks", held_.size()));
    picture.figures.push_back({"", false, std::move(table_)});
    picture.figures.push_back({"bytes per rank, all tensors together", false, detail::bytes_table(held_, total_)});
    picture.details = std::move(details_);
    return picture;
  }

 private:
  int64_t on_all_ranks() const {
    int64_t sum = 0;
    for (const auto& [rank, n_bytes] : held_) sum += n_bytes;
    return sum;
  }

  void add(const NamedTensor& tensor) {
    const int64_t n_bytes = Box::whole(tensor.sizes).numel() * tensor.element_bytes;
    total_ += n_bytes;
    TableFigure::Line& line = table_.lines.emplace_back();
    line.words = {tensor.name, fmt::format("[{}]", fmt::join(tensor.sizes, ", ")), tensor.dtype,
                  placements_in_brief(tensor), with_commas(n_bytes)};
    if (!tensor.layout) {
      for (auto& [rank, held] : held_) held += n_bytes;
      line.words.insert(line.words.end(), {with_commas(n_bytes), ""});
      return;
    }
    line.detail = detail_of(tensor);
    int64_t most = 0, sum = 0;
    for (const RankShare& share : details_[line.detail].shares) {
      held_[places_.at(share.rank)].second += share.n_bytes;
      most = std::max(most, share.n_bytes);
      sum += share.n_bytes;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(tensor.layout->grid().size());
    line.words.insert(line.words.end(),
                      {with_commas(most), sum > 0 ? fmt::format("{:.2f}", static_cast<double>(most) / mean) : "-"});
  }

  /// Tensors of equal layout and element size share one.
  int64_t detail_of(const NamedTensor& tensor) {
    auto& candidates = known_[tensor.layout->hash()];
    for (const int64_t number : candidates)
      if (details_[number].layout == *tensor.layout && details_[number].element_bytes == tensor.element_bytes)
        return number;
    candidates.push_back(static_cast<int64_t>(details_.size()));
    details_.push_back(tensor_figure(*tensor.layout, tensor.element_bytes, kDetailSlices));
    return candidates.back();
  }

  const std::vector<NamedTensor>& tensors_;
  std::vector<detail::RankBytes> held_;  // of every rank that a layout names
  std::map<int64_t, size_t> places_;     // of ranks in it
  int64_t total_ = 0;
  TableFigure table_{{{"tensor"},
                      {"shape"},
                      {"dtype"},
                      {"placements"},
                      {"bytes", true},
                      {"most on a rank", true},
                      {"imbalance", true}},
                     {},
                     {}};
  std::vector<TensorFigure> details_;
  std::map<size_t, std::vector<int64_t>> known_;  // details by the hash of the layout
};

}  // namespace

Picture picture_of(const std::vector<NamedTensor>& tensors, int64_t rank) { return TensorList(tensors, rank).run(); }

}  // namespace shardwise
