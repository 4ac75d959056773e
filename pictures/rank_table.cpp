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
      table.lines.push_back({.note = left_out(c10::ArrayRef<RankBytes>(held).slice(i, n - kLastRanks - i))});
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

/// Adds the line of a rank or of one of its pieces, whose last words are `n_bytes` and their share of `total`.
void add_line(TableFigure& table, std::vector<std::string> words, int64_t rank, int64_t n_bytes, int64_t total,
              int64_t most) {
  words.insert(words.end(), {with_commas(n_bytes), share_of(n_bytes, total)});
  const double fraction = most > 0 ? static_cast<double>(n_bytes) / static_cast<double>(most) : 0;
  table.lines.push_back({.words = std::move(words), .rank = rank, .fraction = fraction});
}

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
  const int64_t total = bytes_of_tensor(figure), most = most_of(held);
  add_ranks(table, held, [&](size_t i) {
    const RankShare& share = figure.shares[i];
    const size_t n = share.boxes.size(), n_shown = n > kMaxPieces ? kFirstPieces : n;
    const std::string name = fmt::format("{}", share.rank);
    for (size_t piece = 0; piece < n_shown; ++piece) {
      const Box& box = share.boxes[piece];
      add_line(table, {piece == 0 ? name : "", list(box.sizes), list(box.offsets)}, share.rank,
               box.numel() * figure.element_bytes, total, most);
    }
    if (n > n_shown) table.lines.push_back({.note = fmt::format("... {} more", n - n_shown)});
    if (n != 1)
      add_line(table, {n == 0 ? name : "", n == 0 ? "no piece" : fmt::format("{} pieces", n), ""}, share.rank,
               share.n_bytes, total, most);
  });
  if (!figure.layout)
    table.notes = {
        "the other ranks' shards are not known here: DTensor.from_local(wrapper, mesh, placements) joins them"};
  return table;
}

TableFigure bytes_table(const std::vector<RankBytes>& held, int64_t total) {
  TableFigure table{{{"rank", true}, {"bytes", true}, {"share", true}}, {}, {}};
  add_ranks(table, held, [&](size_t i) {
    const auto& [rank, n_bytes] = held[i];
    add_line(table, {fmt::format("{}", rank)}, rank, n_bytes, total, most_of(held));
  });
  return table;
}

}  // namespace shardwise::detail
