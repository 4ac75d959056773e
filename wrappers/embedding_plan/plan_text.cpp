#include "wrappers/embedding_plan/plan_text.h"

#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr const char* kNothing = "·";

std::string cell(const TableConfig& table, Treatment treatment, const TableSlice& slice, bool in_words) {
  switch (treatment) {
    case Treatment::kReplicated:
      return in_words ? "whole" : "W";
    case Treatment::kTableParallel:
      if (in_words) return fmt::format("columns {}:{}", slice.columns.begin, slice.columns.end);
      return slice.columns.length() == table.n_columns ? "T" : "C";
    case Treatment::kRowParallel:
      break;
  }
  return in_words ? fmt::format("rows {}:{}", slice.rows.begin, slice.rows.end) : "R";
}

const char* shade(double share) {
  if (share >= 1) return "█";
  if (share >= 0.5) return "▓";
  if (share >= 0.1) return "▒";
  return share > 0 ? "░" : kNothing;
}

std::string bar(double share, bool in_words) {
  constexpr std::array<const char*, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto eighths = std::lround(8 * share);
  if (!in_words) return kBars[static_cast<size_t>(std::clamp<long>(eighths - 1, 0, 7))];
  std::string blocks;
  for (long i = 0; i < eighths; ++i) blocks += "█";
  return fmt::format("{} {:.0f}%", blocks, 100 * share);
}

}  // namespace

std::string picture(const EmbeddingPlan& plan) {
  const bool in_words = plan.n_ranks <= kWordRanks;
  const int64_t n_columns = std::min(plan.n_ranks, kCharacterRanks);
  std::vector<std::string> heads;
  std::string legend;
  if (in_words) {
    for (int64_t r = 0; r < plan.n_ranks; ++r) heads.push_back(fmt::format("rank {}", r));
  } else if (plan.n_ranks <= kCharacterRanks) {
    heads.push_back(fmt::format("ranks 0 to {}", plan.n_ranks - 1));
    legend = "T the whole table   C some of its columns   R some of its rows   W a replica   · nothing\n";
  } else {
    heads.push_back(fmt::format("ranks 0 to {}, {} to {} per character", plan.n_ranks - 1, plan.n_ranks / n_columns,
                                (plan.n_ranks - 1) / n_columns + 1));
    legend = "ranks with a part of the table: █ all   ▓ half or more   ▒ a tenth or more   ░ some   · none\n";
  }
  std::vector<TextTable::Column> text_columns{{"table"}};
  for (const std::string& head : heads) text_columns.push_back({head});
  TextTable lines(std::move(text_columns));
  // `words(begin, end)` is the text of the column that shows ranks [begin, end).
  const auto add = [&](const std::string& name, const auto& words) {
    std::vector<std::string> line{name};
    for (int64_t c = 0; c < n_columns; ++c) {
      const Interval ranks = balanced_part(plan.n_ranks, n_columns, c);
      if (in_words || c == 0) line.emplace_back();
      line.back() += words(ranks.begin, ranks.end);
    }
    lines.add(std::move(line));
  };
  const auto add_table = [&](size_t t) {
    std::vector<std::string> cells(static_cast<size_t>(plan.n_ranks), kNothing);
    for (const TableSlice& slice : plan.table_plans[t].slices)
      if (slice.rows.length() > 0)
        cells[slice.rank] = cell(plan.tables[t], plan.table_plans[t].treatment, slice, in_words);
    add(plan.tables[t].name, [&](int64_t begin, int64_t end) -> std::string {
      if (n_columns == plan.n_ranks) return cells[begin];
      const auto n_empty = std::count(cells.begin() + begin, cells.begin() + end, kNothing), n = end - begin;
      return shade(static_cast<double>(n - n_empty) / static_cast<double>(n));
    });
  };
  const auto add_bars = [&](const char* name, const auto& amount) {
    const auto most_of = [&](int64_t begin, int64_t end) {
      double most = 0;
      for (int64_t r = begin; r < end; ++r) most = std::max(most, static_cast<double>(amount(plan.ranks[r].load)));
      return most;
    };
    const double most = most_of(0, plan.n_ranks);
    add(name, [&](int64_t begin, int64_t end) { return bar(most > 0 ? most_of(begin, end) / most : 0, in_words); });
  };
  for_lines(plan.tables.size(), add_table, [&](size_t begin, size_t end) {
    lines.add_note(fmt::format("... {} more tables", with_commas(static_cast<int64_t>(end - begin))));
  });
  add_bars("bytes", [](const RankLoad& load) { return load.n_bytes(); });
  add_bars("time", [](const RankLoad& load) { return load.seconds; });
  return lines.to_string() + legend;
}

}  // namespace shardwise
