#include "placements/rank_table.h"

#include "placements/rank_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwise::detail {

namespace {

constexpr size_t kMaxRanks = 32, kFirstRanks = 20, kLastRanks = 8;
constexpr size_t kMaxPieces = 8, kFirstPieces = 6;

struct Holding {
  int64_t rank = 0;
  std::vector<Box> boxes;
  int64_t n_bytes = 0;
};

template <class T>
using Words = std::array<T, 5>;  // rank, shape, offsets, bytes, share

struct Line {
  int64_t rank = -1;  // -1: a further line of the rank above
  Words<std::string> words;
  std::string note = {};  // stands in place of the words
};

std::string list(const Dims& numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

template <class T>
std::string in_columns(const Words<T>& words, const Words<size_t>& width) {
  std::string text = fmt::format("  {:>{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}", words[0], width[0], words[1], width[1],
                                 words[2], width[2], words[3], width[3], words[4], width[4]);
  return text.erase(text.find_last_not_of(' ') + 1) + "\n";
}

class Table {
 public:
  Table(int64_t total_bytes, int64_t element_bytes) : total_bytes_(total_bytes), element_bytes_(element_bytes) {}

  void add(const Holding& holding) {
    const size_t n = holding.boxes.size();
    for (size_t i = 0; i < (n > kMaxPieces ? kFirstPieces : n); ++i) {
      const Box& box = holding.boxes[i];
      add_line(i == 0 ? holding.rank : -1, list(box.sizes), list(box.offsets), box.numel() * element_bytes_);
    }
    if (n > kMaxPieces) add_note(fmt::format("... {} more", n - kFirstPieces));
    if (n != 1)
      add_line(n == 0 ? holding.rank : -1, n == 0 ? "no piece" : fmt::format("{} pieces", n), "", holding.n_bytes);
  }

  void add_note(std::string note) { lines_.push_back({-1, {}, std::move(note)}); }

  std::string to_string(bool color) const {
    constexpr Words<std::string_view> kHeads = {"rank", "shape", "offsets", "bytes", "share"};
    Words<size_t> width{};
    for (size_t i = 0; i < kHeads.size(); ++i) {
      width[i] = kHeads[i].size();
      for (const Line& line : lines_) width[i] = std::max(width[i], line.words[i].size());
    }
    std::string out = in_columns(kHeads, width);
    for (const Line& line : lines_) {
      std::string text =
          line.note.empty() ? in_columns(line.words, width) : fmt::format("  {:>{}}  {}\n", "", width[0], line.note);
      if (color && line.rank >= 0) text.insert(2 + width[0], kPlain).insert(2, background(line.rank));
      out += text;
    }
    return out;
  }

 private:
  void add_line(int64_t rank, std::string shape, std::string offsets, int64_t n_bytes) {
    const std::string share = total_bytes_ > 0 ? fmt::format("{:.1f}%", 100.0 * n_bytes / total_bytes_) : "-";
    lines_.push_back(
        {rank,
         {rank < 0 ? "" : fmt::format("{}", rank), std::move(shape), std::move(offsets), with_commas(n_bytes), share},
         ""});
  }

  int64_t total_bytes_, element_bytes_;
  std::vector<Line> lines_;
};

std::vector<Holding> holdings_of(const Layout& layout, int64_t element_bytes) {
  std::vector<Holding> holdings;
  for (const int64_t rank : layout.grid().ranks) {
    holdings.push_back({rank, layout.boxes(rank), 0});
    for (const Box& box : holdings.back().boxes) holdings.back().n_bytes += box.numel() * element_bytes;
  }
  return holdings;
}

bool fewer_bytes(const Holding& a, const Holding& b) { return a.n_bytes < b.n_bytes; }

std::string left_out(c10::ArrayRef<Holding> holdings) {
  const auto [least, most] = std::minmax_element(holdings.begin(), holdings.end(), fewer_bytes);
  const std::string range = least->n_bytes == most->n_bytes
                                ? with_commas(most->n_bytes)
                                : with_commas(least->n_bytes) + " to " + with_commas(most->n_bytes);
  return fmt::format("... {} more ranks of {} bytes each", holdings.size(), range);
}

std::string imbalance(const std::vector<Holding>& holdings) {
  const int64_t most = std::max_element(holdings.begin(), holdings.end(), fewer_bytes)->n_bytes;
  double mean = 0;
  std::vector<int64_t> largest;
  for (const Holding& holding : holdings) {
    mean += static_cast<double>(holding.n_bytes) / holdings.size();
    if (holding.n_bytes == most) largest.push_back(holding.rank);
  }
  if (largest.size() == holdings.size()) {
    return fmt::format("  imbalance 1.00: {} {} bytes\n",
                       holdings.size() == 1 ? "the only rank holds" : "every rank holds", with_commas(most));
  }
  return fmt::format("  imbalance {:.2f}: {} {} {} bytes, the mean is {}\n", most / mean, rank_words(largest),
                     largest.size() == 1 ? "holds" : "hold", with_commas(most), with_commas(std::llround(mean)));
}

}  // namespace

std::string with_commas(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string rank_table(const Layout& layout, int64_t element_bytes, bool color) {
  const auto holdings = holdings_of(layout, element_bytes);
  Table table(Box::whole(layout.sizes()).numel() * element_bytes, element_bytes);
  const size_t n = holdings.size();
  for (size_t i = 0; i < n; ++i) {
    if (n > kMaxRanks && i == kFirstRanks) {
      table.add_note(left_out(c10::ArrayRef<Holding>(holdings).slice(i, n - kLastRanks - i)));
      i = n - kLastRanks;
    }
    table.add(holdings[i]);
  }
  return table.to_string(color) + imbalance(holdings);
}

}  // namespace shardwise::detail
