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

/// A mean of few bytes is shown with a fraction.
std::string mean_in_words(double mean) {
  if (mean >= 10 || mean == std::floor(mean)) return with_commas(std::llround(mean));
  return fmt::format("{:.2g}", mean);
}

double fraction_of(int64_t n_bytes, int64_t most) {
  return most > 0 ? static_cast<double>(n_bytes) / static_cast<double>(most) : 0.0;
}

bool fewer_bytes(const RankBytes& a, const RankBytes& b) { return a.second < b.second; }

int64_t most_of(const std::vector<RankBytes>& held) {
  return held.empty() ? 0 : std::max_element(held.begin(), held.end(), fewer_bytes)->second;
}

std::string left_out(c10::ArrayRef<RankBytes> held) {
  const auto [least, most] = std::minmax_element(held.begin(), held.end(), fewer_bytes);
  const std::string range = least->second == most->second
                                ? with_commas(most->second)
                                : with_commas(least->second) + " to " + with_commas(most->second);
  return fmt::format("... {} more ranks of {} bytes each", held.size(), range);
}

/// Calls `add(i)` for the ranks that are shown, and adds a note for those left out.
template <class Add>
void add_ranks(TableFigure& table, const std::vector<RankBytes>& held, const Add& add) {
  const size_t n = held.size();
  for (size_t i = 0; i < n; ++i) {
    if (n > kMaxRanks && i == kFirstRanks) {
      table.lines.push_back({});
      table.lines.back().note = left_out(c10::ArrayRef<RankBytes>(held).slice(i, n - kLastRanks - i));
      i = n - kLastRanks;
    }
    add(i);
  }
  if (n > 0) table.notes.push_back(imbalance_of(held));
}

std::vector<RankBytes> bytes_of(const std::vector<RankShare>& shares) {
  std::vector<RankBytes> held;
  for (const RankShare& share : shares) held.emplace_back(share.rank, share.n_bytes);
  return held;
}

/// The lines of the ranks of one tensor.
class RankLines {
 public:
  RankLines(const TensorFigure& figure, int64_t most, TableFigure& table)
      : total_bytes_(bytes_of_tensor(figure)), element_bytes_(figure.element_bytes), most_(most), table_(table) {}

  void add(const RankShare& share) {
    const size_t n = share.boxes.size();
    for (size_t i = 0; i < (n > kMaxPieces ? kFirstPieces : n); ++i) {
      const Box& box = share.boxes[i];
      add_line(share.rank, i == 0, list(box.sizes), list(box.offsets), box.numel() * element_bytes_);
    }
    if (n > kMaxPieces) {
      table_.lines.push_back({});
      table_.lines.back().note = fmt::format("... {} more", n - kFirstPieces);
    }
    if (n != 1) add_line(share.rank, n == 0, n == 0 ? "no piece" : fmt::format("{} pieces", n), "", share.n_bytes);
  }

 private:
  /// `is_first`: the first line of a rank has its number.
  void add_line(int64_t rank, bool is_first, std::string shape, std::string offsets, int64_t n_bytes) {
    TableFigure::Line& line = table_.lines.emplace_back();
    line.words = {is_first ? fmt::format("{}", rank) : "", std::move(shape), std::move(offsets), with_commas(n_bytes),
                  share_of(n_bytes, total_bytes_)};
    line.rank = rank;
    line.fraction = fraction_of(n_bytes, most_);
  }

  int64_t total_bytes_, element_bytes_, most_;
  TableFigure& table_;
};

}  // namespace

std::string share_of(int64_t n_bytes, int64_t total) {
  if (total <= 0) return "-";
  const double percent = 100.0 * static_cast<double>(n_bytes) / static_cast<double>(total);
  const double missing = 100.0 * static_cast<double>(total - n_bytes) / static_cast<double>(total);
  const double least = std::min(percent, missing);
  const int digits = least <= 0 || least >= 0.1 ? 1 : 1 - static_cast<int>(std::floor(std::log10(least)));
  return fmt::format("{:.{}f}%", percent, std::min(digits, 9));
}

std::string imbalance_of(const std::vector<RankBytes>& held) {
  const int64_t most = most_of(held);
  double mean = 0;
  std::vector<int64_t> largest;
  for (const auto& [rank, n_bytes] : held) {
    mean += static_cast<double>(n_bytes) / static_cast<double>(held.size());
    if (n_bytes == most) largest.push_back(rank);
  }
  if (largest.size() == held.size()) {
    return fmt::format("imbalance 1.00: {} {} bytes", held.size() == 1 ? "the only rank holds" : "every rank holds",
                       with_commas(most));
  }
  return fmt::format("imbalance {:.2f}: {} {} {} bytes, the mean is {}", static_cast<double>(most) / mean,
                     rank_words(largest), largest.size() == 1 ? "holds" : "hold", with_commas(most),
                     mean_in_words(mean));
}

TableFigure rank_table(const TensorFigure& figure) {
  TableFigure table{{{"rank", true}, {"shape"}, {"offsets"}, {"bytes", true}, {"share", true}}, {}, {}};
  const std::vector<RankBytes> held = bytes_of(figure.shares);
  RankLines lines(figure, most_of(held), table);
  add_ranks(table, held, [&](size_t i) { lines.add(figure.shares[i]); });
  if (!figure.layout)
    table.notes = {
        "the other ranks' shards are not known here: DTensor.from_local(wrapper, mesh, placements) joins them"};
  return table;
}

TableFigure bytes_table(const std::vector<RankBytes>& held, int64_t total) {
  TableFigure table{{{"rank", true}, {"bytes", true}, {"share", true}}, {}, {}};
  add_ranks(table, held, [&](size_t i) {
    const auto& [rank, n_bytes] = held[i];
    TableFigure::Line& line = table.lines.emplace_back();
    line.words = {fmt::format("{}", rank), with_commas(n_bytes), share_of(n_bytes, total)};
    line.rank = rank;
    line.fraction = fraction_of(n_bytes, most_of(held));
  });
  return table;
}

}  // namespace shardwise::detail
