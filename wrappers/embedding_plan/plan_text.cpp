#include "wrappers/embedding_plan/plan_text.h"

#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace shardwise {
namespace {

using detail::Align;
using detail::TextTable;
using detail::with_commas;

constexpr size_t kMostLines = 40, kFirstLines = 26, kLastLines = 8;

std::string count_text(double number) { return with_commas(std::llround(number)); }

/// Calls show(i) for [0, n). If n is large, the middle is replaced by one call fold(begin, end).
template <class Show, class Fold>
void for_lines(size_t n, const Show& show, const Fold& fold) {
  for (size_t i = 0; i < n; ++i) {
    if (n > kMostLines && i == kFirstLines) {
      i = n - kLastLines;
      fold(kFirstLines, i);
    }
    show(i);
  }
}

std::string ranks_text(const TablePlan& plan, int64_t n_ranks) {
  if (plan.treatment == Treatment::kReplicated) return n_ranks == 1 ? "0" : fmt::format("0-{}", n_ranks - 1);
  std::set<int64_t> ranks;
  for (const TableSlice& slice : plan.slices)
    if (slice.rows.length() > 0) ranks.insert(slice.rank);
  return detail::rank_list(std::vector<int64_t>(ranks.begin(), ranks.end()));
}

std::string table_lines(const EmbeddingPlan& plan) {
  TextTable lines({{"table"},
                   {"shape"},
                   {"dtype"},
                   {"combiner"},
                   {"treatment"},
                   {"slices", Align::kRight},
                   {"ranks"},
                   {"bytes", Align::kRight},
                   {"why"}});
  for_lines(
      plan.tables.size(),
      [&](size_t t) {
        const TableConfig& table = plan.tables[t];
        const TablePlan& placed = plan.table_plans[t];
        lines.add({table.name, fmt::format("[{}, {}]", with_commas(table.n_rows), table.n_columns), table.dtype,
                   std::string(to_string(table.combiner)), std::string(to_string(placed.treatment)),
                   with_commas(static_cast<int64_t>(placed.slices.size())), ranks_text(placed, plan.n_ranks),
                   with_commas(table.n_elements() * element_bytes(table.dtype)), placed.reason});
      },
      [&](size_t begin, size_t end) {
        lines.add_note(fmt::format("... {} more tables", with_commas(static_cast<int64_t>(end - begin))));
      });
  return lines.to_string();
}

std::string rank_lines(const EmbeddingPlan& plan) {
  TextTable lines({{"rank", Align::kRight},
                   {"groups", Align::kRight},
                   {"slices", Align::kRight},
                   {"bytes", Align::kRight},
                   {"lookups", Align::kRight},
                   {"exchanged", Align::kRight},
                   {"time", Align::kRight}});
  size_t n_replicated = 0;
  for (const TablePlan& table : plan.table_plans) n_replicated += table.treatment == Treatment::kReplicated;
  for_lines(
      plan.ranks.size(),
      [&](size_t r) {
        const RankEmbeddings& rank = plan.ranks[r];
        lines.add({fmt::format("{}", r), fmt::format("{}", rank.groups.size()),
                   fmt::format("{}", rank.sharded.size() + n_replicated), with_commas(rank.load.n_bytes()),
                   count_text(rank.load.lookups), count_text(rank.load.exchange_bytes), time_text(rank.load.seconds)});
      },
      [&](size_t begin, size_t end) {
        double least = plan.ranks[begin].load.seconds, most = least;
        for (size_t r = begin; r < end; ++r) {
          least = std::min(least, plan.ranks[r].load.seconds);
          most = std::max(most, plan.ranks[r].load.seconds);
        }
        lines.add_note(fmt::format("... {} more ranks of {} to {}", with_commas(static_cast<int64_t>(end - begin)),
                                   time_text(least), time_text(most)));
      });
  return lines.to_string();
}

}  // namespace

std::string time_text(double seconds) {
  for (const auto& [unit, factor] : {std::pair{"us", 1e6}, std::pair{"ms", 1e3}})
    if (seconds * factor < 999.95) return fmt::format("{:.1f} {}", seconds * factor, unit);
  return fmt::format("{:.2f} s", seconds);
}

std::string to_string(const EmbeddingPlan& plan) {
  double mean = 0;
  for (const RankEmbeddings& rank : plan.ranks)
    mean += static_cast<double>(rank.load.n_bytes()) / static_cast<double>(plan.n_ranks);
  const int64_t heaviest = plan.heaviest_rank();
  return fmt::format(
      "{} tables on {} ranks, {}: a step takes {} on rank {}, the most loaded; none takes less than {} (ratio {:.3f})\n"
      "rank {} is the heaviest: {} bytes, the mean is {}\n\n{}\n{}",
      with_commas(static_cast<int64_t>(plan.tables.size())), with_commas(plan.n_ranks),
      to_string(plan.options.strategy), time_text(plan.seconds()), plan.most_loaded_rank(),
      time_text(plan.bound_seconds), plan.seconds() / plan.bound_seconds, heaviest,
      with_commas(plan.ranks[heaviest].load.n_bytes()), count_text(mean), table_lines(plan), rank_lines(plan));
}

namespace {

constexpr int64_t kWordRanks = 8, kCharacterRanks = 64;

std::string cell_words(const TablePlan& plan, const TableSlice& slice) {
  switch (plan.treatment) {
    case Treatment::kReplicated:
      return "whole";
    case Treatment::kTableParallel:
      return fmt::format("columns {}:{}", slice.columns.begin, slice.columns.end);
    case Treatment::kRowParallel:
      break;
  }
  return fmt::format("rows {}:{}", slice.rows.begin, slice.rows.end);
}

/// The columns of a picture: runs of ranks.
class PictureColumns {
 public:
  explicit PictureColumns(const EmbeddingPlan& plan) : plan_(plan), n_(std::min(plan.n_ranks, kCharacterRanks)) {}

  bool of_words() const { return plan_.n_ranks <= kWordRanks; }
  int64_t size() const { return n_; }
  Interval ranks(int64_t column) const { return balanced_part(plan_.n_ranks, n_, column); }

  /// One text per column, or one string with a character per column.
  std::vector<std::string> line(size_t t) const {
    const TablePlan& plan = plan_.table_plans[t];
    std::vector<std::string> words(static_cast<size_t>(n_), "·");
    if (plan_.n_ranks <= kCharacterRanks) {
      for (const TableSlice& slice : plan.slices)
        if (slice.rows.length() > 0)
          words[slice.rank] =
              of_words() ? cell_words(plan, slice) : std::string(1, letter(plan, slice, plan_.tables[t]));
      return words;
    }
    std::vector<int64_t> holders(static_cast<size_t>(n_), 0);
    if (plan.treatment == Treatment::kReplicated) {
      std::ranges::fill(words, "█");
      return words;
    }
    for (const TableSlice& slice : plan.slices)
      if (slice.rows.length() > 0) ++holders[column_of(slice.rank)];
    for (int64_t c = 0; c < n_; ++c)
      if (holders[c] > 0) words[c] = shade(static_cast<double>(holders[c]) / static_cast<double>(ranks(c).length()));
    return words;
  }

  /// Bars: the largest amount of a rank in each column, relative to the largest of all.
  template <class Amount>
  std::vector<std::string> bars(const Amount& amount) const {
    constexpr std::array<const char*, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double most = 0;
    for (const RankEmbeddings& rank : plan_.ranks) most = std::max(most, static_cast<double>(amount(rank)));
    std::vector<std::string> words;
    for (int64_t c = 0; c < n_; ++c) {
      double of_column = 0;
      for (int64_t r = ranks(c).begin; r < ranks(c).end; ++r)
        of_column = std::max(of_column, static_cast<double>(amount(plan_.ranks[r])));
      const double share = most > 0 ? of_column / most : 0;
      if (of_words()) {
        std::string bar;
        for (int i = 0; i < std::lround(8 * share); ++i) bar += "█";
        words.push_back(fmt::format("{} {:.0f}%", bar, 100 * share));
      } else {
        words.emplace_back(kBars[static_cast<size_t>(std::clamp<long>(std::lround(8 * share) - 1, 0, 7))]);
      }
    }
    return words;
  }

 private:
  int64_t column_of(int64_t rank) const {
    // The inverse of balanced_part().
    const int64_t least = plan_.n_ranks / n_, n_longer = plan_.n_ranks % n_;
    const int64_t in_longer = n_longer * (least + 1);
    return rank < in_longer ? rank / (least + 1) : n_longer + (rank - in_longer) / least;
  }

  static char letter(const TablePlan& plan, const TableSlice& slice, const TableConfig& table) {
    if (plan.treatment == Treatment::kReplicated) return 'W';
    if (plan.treatment == Treatment::kRowParallel) return 'R';
    return slice.columns.length() == table.n_columns ? 'T' : 'C';
  }

  static const char* shade(double share) {
    if (share >= 1) return "█";
    if (share >= 0.5) return "▓";
    return share >= 0.1 ? "▒" : "░";
  }

  const EmbeddingPlan& plan_;
  int64_t n_;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word;
  return text;
}

}  // namespace

std::string picture(const EmbeddingPlan& plan) {
  const PictureColumns columns(plan);
  std::vector<std::string> heads;
  std::string legend;
  if (columns.of_words()) {
    for (int64_t r = 0; r < plan.n_ranks; ++r) heads.push_back(fmt::format("rank {}", r));
  } else if (plan.n_ranks <= kCharacterRanks) {
    heads.push_back(fmt::format("ranks 0 to {}", plan.n_ranks - 1));
    legend = "T the whole table   C some of its columns   R some of its rows   W a replica   · nothing\n";
  } else {
    heads.push_back(fmt::format("ranks 0 to {}, {} to {} per character", plan.n_ranks - 1,
                                plan.n_ranks / columns.size(), (plan.n_ranks - 1) / columns.size() + 1));
    legend = "ranks with a part of the table: █ all   ▓ half or more   ▒ a tenth or more   ░ some   · none\n";
  }
  std::vector<TextTable::Column> text_columns{{"table"}};
  for (const std::string& head : heads) text_columns.push_back({head});
  TextTable lines(std::move(text_columns));
  const auto add = [&](std::string name, std::vector<std::string> words) {
    if (!columns.of_words()) words = {joined(words)};
    words.insert(words.begin(), std::move(name));
    lines.add(std::move(words));
  };
  for_lines(
      plan.tables.size(), [&](size_t t) { add(plan.tables[t].name, columns.line(t)); },
      [&](size_t begin, size_t end) {
        lines.add_note(fmt::format("... {} more tables", with_commas(static_cast<int64_t>(end - begin))));
      });
  add("bytes", columns.bars([](const RankEmbeddings& rank) { return rank.load.n_bytes(); }));
  add("time", columns.bars([](const RankEmbeddings& rank) { return rank.load.seconds; }));
  return lines.to_string() + legend;
}

}  // namespace shardwise
