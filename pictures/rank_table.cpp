#include "pictures/rank_table.h"

#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace shardwise::detail {

namespace {

constexpr size_t kMaxRanks = 32, kFirstRanks = 20, kLastRanks = 8;
constexpr size_t kMaxPieces = 8, kFirstPieces = 6;

std::string list(const Dims& numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

class RankTable {
 public:
  RankTable(const Picture& picture, bool color)
      : total_bytes_(Box::whole(picture.layout.sizes()).numel() * picture.element_bytes),
        element_bytes_(picture.element_bytes),
        color_(color) {}

  void add(const RankShare& share) {
    const size_t n = share.boxes.size();
    for (size_t i = 0; i < (n > kMaxPieces ? kFirstPieces : n); ++i) {
      const Box& box = share.boxes[i];
      add_line(i == 0 ? share.rank : -1, list(box.sizes), list(box.offsets), box.numel() * element_bytes_);
    }
    if (n > kMaxPieces) add_note(fmt::format("... {} more", n - kFirstPieces));
    if (n != 1)
      add_line(n == 0 ? share.rank : -1, n == 0 ? "no piece" : fmt::format("{} pieces", n), "", share.n_bytes);
  }

  void add_note(std::string note) { table_.add_note(std::move(note)); }
  std::string to_string() const { return table_.to_string(); }

 private:
  /// `rank`: -1 for a further line of the rank above.
  void add_line(int64_t rank, std::string shape, std::string offsets, int64_t n_bytes) {
    std::string share = total_bytes_ > 0 ? fmt::format("{:.1f}%", 100.0 * n_bytes / total_bytes_) : "-";
    table_.add({rank < 0 ? "" : fmt::format("{}", rank), std::move(shape), std::move(offsets), with_commas(n_bytes),
                std::move(share)},
               color_ && rank >= 0 ? background(rank) : "");
  }

  int64_t total_bytes_, element_bytes_;
  bool color_;
  TextTable table_{
      {{"rank", Align::kRight}, {"shape"}, {"offsets"}, {"bytes", Align::kRight}, {"share", Align::kRight}}, 2};
};

bool fewer_bytes(const RankShare& a, const RankShare& b) { return a.n_bytes < b.n_bytes; }

std::string left_out(c10::ArrayRef<RankShare> shares) {
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end(), fewer_bytes);
  const std::string range = least->n_bytes == most->n_bytes
                                ? with_commas(most->n_bytes)
                                : with_commas(least->n_bytes) + " to " + with_commas(most->n_bytes);
  return fmt::format("... {} more ranks of {} bytes each", shares.size(), range);
}

std::string imbalance(const std::vector<RankShare>& shares) {
  const int64_t most = std::max_element(shares.begin(), shares.end(), fewer_bytes)->n_bytes;
  double mean = 0;
  std::vector<int64_t> largest;
  for (const RankShare& share : shares) {
    mean += static_cast<double>(share.n_bytes) / static_cast<double>(shares.size());
    if (share.n_bytes == most) largest.push_back(share.rank);
  }
  if (largest.size() == shares.size()) {
    return fmt::format("  imbalance 1.00: {} {} bytes\n",
                       shares.size() == 1 ? "the only rank holds" : "every rank holds", with_commas(most));
  }
  return fmt::format("  imbalance {:.2f}: {} {} {} bytes, the mean is {}\n", static_cast<double>(most) / mean,
                     rank_words(largest), largest.size() == 1 ? "holds" : "hold", with_commas(most),
                     with_commas(std::llround(mean)));
}

}  // namespace

std::string rank_table(const Picture& picture, bool color) {
  RankTable table(picture, color);
  const auto& shares = picture.shares;
  const size_t n = shares.size();
  for (size_t i = 0; i < n; ++i) {
    if (n > kMaxRanks && i == kFirstRanks) {
      table.add_note(left_out(c10::ArrayRef<RankShare>(shares).slice(i, n - kLastRanks - i)));
      i = n - kLastRanks;
    }
    table.add(shares[i]);
  }
  return table.to_string() + imbalance(shares);
}

}  // namespace shardwise::detail
