#include "pictures/picture.h"
#include "pictures/rank_table.h"
#include "pictures/tensor_figure.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace shardwise {
namespace {

using detail::with_commas;

constexpr size_t kLongestPlacements = 48;
constexpr int64_t kDetailSlices = 16;  // of the figure that a line opens

const Layout* layout_of(const NamedTensor& tensor) { return std::get_if<Layout>(&tensor.place); }
const LocalShards* shards_of(const NamedTensor& tensor) { return std::get_if<LocalShards>(&tensor.place); }

std::string placements_in_brief(const NamedTensor& tensor) {
  if (const LocalShards* shards = shards_of(tensor)) return name_of_local_shards(shards->boxes.size());
  const Layout* layout = layout_of(tensor);
  if (!layout) return "ordinary tensor";
  const bool has_words = !tensor.placements.empty() && !layout->has_listed_boxes();
  std::string text = has_words ? tensor.placements : placements_in_brief(*layout);
  if (text.size() > kLongestPlacements) text = text.substr(0, kLongestPlacements - 3) + "...";
  return text;
}

/// Elements of the whole tensor or, for local shards, of this rank's shards.
int64_t n_elements(const NamedTensor& tensor) {
  const LocalShards* shards = shards_of(tensor);
  if (!shards) return Box::whole(tensor.sizes).numel();
  int64_t n = 0;
  for (const Box& box : shards->boxes) n += box.numel();
  return n;
}

/// Adds up the bytes of ranks, and makes the lines.
class TensorList {
 public:
  TensorList(const std::vector<NamedTensor>& tensors, int64_t rank) : tensors_(tensors), rank_(rank) {
    for (const NamedTensor& tensor : tensors)
      if (const Layout* layout = layout_of(tensor))
        for (const int64_t member : layout->grid().ranks) add_rank(member);
    if (held_.empty() || std::ranges::any_of(tensors, shards_of)) add_rank(rank);
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
  void add_rank(int64_t rank) {
    if (places_.try_emplace(rank, held_.size()).second) held_.emplace_back(rank, 0);
  }

  int64_t on_all_ranks() const {
    int64_t sum = 0;
    for (const auto& [rank, n_bytes] : held_) sum += n_bytes;
    return sum;
  }

  void add(const NamedTensor& tensor) {
    const int64_t n_bytes = n_elements(tensor) * tensor.element_bytes;
    total_ += n_bytes;
    TableFigure::Line& line = table_.lines.emplace_back();
    line.words = {tensor.name, fmt::format("[{}]", fmt::join(tensor.sizes, ", ")), tensor.dtype,
                  placements_in_brief(tensor), with_commas(n_bytes)};
    if (std::holds_alternative<std::monostate>(tensor.place)) {
      for (auto& [rank, held] : held_) held += n_bytes;
      line.words.insert(line.words.end(), {with_commas(n_bytes), ""});
      return;
    }
    line.detail = detail_of(tensor);
    int64_t most = 0, sum = 0;
    const std::vector<RankShare>& shares = details_[line.detail].shares;
    for (const RankShare& share : shares) {
      held_[places_.at(share.rank)].second += share.n_bytes;
      most = std::max(most, share.n_bytes);
      sum += share.n_bytes;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(shares.size());
    const bool has_imbalance = sum > 0 && layout_of(tensor);
    line.words.insert(
        line.words.end(),
        {with_commas(most), has_imbalance ? fmt::format("{:.2f}", static_cast<double>(most) / mean) : "-"});
  }

  /// The index of the tensor's detail. Tensors of equal layout and element size share one.
  int64_t detail_of(const NamedTensor& tensor) {
    if (const LocalShards* shards = shards_of(tensor)) {
      details_.push_back(tensor_figure(LocalShards{rank_, shards->boxes}, tensor.element_bytes, kDetailSlices));
      return static_cast<int64_t>(details_.size()) - 1;
    }
    const Layout& layout = *layout_of(tensor);
    auto& candidates = known_[layout.hash()];
    for (const int64_t number : candidates)
      if (details_[number].layout == layout && details_[number].element_bytes == tensor.element_bytes) return number;
    candidates.push_back(static_cast<int64_t>(details_.size()));
    details_.push_back(tensor_figure(layout, tensor.element_bytes, {}, kDetailSlices));
    return candidates.back();
  }

  const std::vector<NamedTensor>& tensors_;
  int64_t rank_;
  std::vector<detail::RankBytes> held_;  // of every rank in a layout
  std::map<int64_t, size_t> places_;     // position in held_, by rank
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
