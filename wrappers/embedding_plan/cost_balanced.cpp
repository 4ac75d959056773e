#include "wrappers/embedding_plan/cost_balanced.h"

#include "text/check.h"
#include "text/table.h"
#include "wrappers/embedding_plan/load_bound.h"
#include "wrappers/embedding_plan/slice_dealing.h"
#include "wrappers/embedding_plan/slice_groups.h"
#include "wrappers/embedding_plan/table_choices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace shardwise::detail {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
// Targets as multiples of the bound, and the shares of a target, and of the memory, that one slice may take.
constexpr std::array kTargets{1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.45, 1.6, 2.0, 3.0};
constexpr std::array kShares{1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05};
constexpr double kCloseEnough = 1.0005;  // to the bound: the search stops
constexpr int64_t kMostTrials = 400000;  // limit of a refinement: (slices + ranks) * divisions tried

std::string duration(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.3g} us", seconds * 1e6) : fmt::format("{:.3g} ms", seconds * 1e3);
}

class CostBalancer {
 public:
  CostBalancer(const LoadModel& model, const EmbeddingPlanOptions& options)
      : model_(model),
        options_(options),
        memory_(options.memory_per_rank ? static_cast<double>(*options.memory_per_rank) : kEndless),
        row_seconds_(model.tables().size()) {}

  std::vector<TablePlan> run() {
    struct Case {
      double bound;
      bool may_replicate, may_shard;
    };
    std::array<Case, 3> cases{{{0, false, true}, {0, true, true}, {0, true, false}}};
    for (Case& each : cases) each.bound = load_bound(model_, options_, each.may_replicate, each.may_shard);
    std::ranges::stable_sort(cases, {}, &Case::bound);
    try_other_strategies();
    for (const Case& each : cases)
      if (each.bound < best_seconds_) search(each.bound, each.may_replicate, each.may_shard);
    SW_CHECK_VALUE(
        !best_.empty(),
        "[plan_embeddings] no plan was found in which each of {} ranks needs at most memory_per_rank {}: the tables "
        "and the optimizer's state are {} bytes per rank when spread evenly. Use more ranks or memory.",
        model_.n_ranks(), with_commas(*options_.memory_per_rank), with_commas(even_bytes()));
    return std::move(best_);
  }

 private:
  int64_t even_bytes() const {
    int64_t sum = 0;
    for (size_t t = 0; t < model_.tables().size(); ++t)
      sum += model_.slice_bytes(t, model_.tables()[t].n_rows, model_.tables()[t].n_columns);
    return sum / model_.n_ranks();
  }

  /// Keeps the plan if it is better and fits.
  void keep_if_better(std::vector<TablePlan> plans) {
    const std::vector<RankLoad> loads = rank_loads(model_, plans);
    double seconds = 0, n_bytes = 0;
    for (const RankLoad& load : loads) {
      seconds = std::max(seconds, load.seconds);
      n_bytes = std::max(n_bytes, static_cast<double>(load.n_bytes()));
    }
    if (n_bytes > memory_ || !(seconds < best_seconds_)) return;
    best_seconds_ = seconds;
    best_ = std::move(plans);
  }

  void try_other_strategies() {
    std::vector<Slicing> slicings;
    try {
      slicings = slice_by_thresholds(model_.tables(), model_.n_ranks(), options_);
    } catch (const c10::ValueError&) {
      return;  // fewer slices than ranks, which this strategy allows
    }
    const auto slices = loose_slices(model_, slicings);
    for (Slicing& slicing : slicings) slicing.reason += "; faster so than by any other division that was tried";
    for (const auto strategy :
         {EmbeddingStrategy::kBasic, EmbeddingStrategy::kMemoryBalanced, EmbeddingStrategy::kMemoryOptimized})
      keep_if_better(
          place(model_.tables(), slicings, slices, deal(slices, model_.n_ranks(), strategy), model_.n_ranks()));
  }

  void search(double bound, bool may_replicate, bool may_shard) {
    const auto choices = table_choices(model_, options_, may_replicate, may_shard);
    const double fixed = model_.fixed_seconds(may_replicate, may_shard);
    Division best;
    const auto is_near = [&](double over) { return fixed + best.seconds() <= fixed + (bound - fixed) * over; };
    for (const double target : kTargets)
      for (const double share : kShares) {
        const double seconds = (bound - fixed) * target;
        if (is_near(kCloseEnough) || seconds >= best.seconds()) continue;
        Division division = deal_chosen(choose(choices, {seconds * share, memory_ * share}, seconds));
        if (division.seconds() < best.seconds()) best = std::move(division);
      }
    if (best.chosen.empty()) return;
    refine(choices, best, (bound - fixed) * kCloseEnough);
    if (fixed + best.seconds() * (1 - 1e-9) < best_seconds_) keep_if_better(plans_of(choices, best));
  }

  /// Treatments and slices of all tables, and the ranks of the slices.
  struct Division {
    std::vector<Choice> chosen;
    std::vector<LooseSlice> slices;
    Packed packed{{}, 0, kEndless};  // without the time that every rank pays
    double seconds() const { return packed.seconds; }
  };

  /// Gives tables of the last rank more slices, or another treatment, as long as that makes the rank finish earlier.
  void refine(const std::vector<TableChoices>& choices, Division& best, double close_enough) {
    auto n_tries =
        std::clamp<int64_t>(kMostTrials / (static_cast<int64_t>(best.slices.size()) + model_.n_ranks()), 4, 1000);
    for (bool is_better = true; is_better && best.seconds() > close_enough && n_tries > 0;) {
      is_better = false;
      for (const size_t t : tables_of_last_rank(best)) {
        for (const Choice& other : others_of(choices[t], best.chosen[t])) {
          if (n_tries-- <= 0) return;
          std::vector<Choice> chosen = best.chosen;
          chosen[t] = other;
          Division division = deal_chosen(std::move(chosen));
          if (division.seconds() >= best.seconds() * (1 - 1e-7)) continue;
          best = std::move(division);
          is_better = true;
          break;
        }
        if (is_better) break;
      }
    }
  }

  /// Tables with slices on the last rank, the most expensive first.
  std::vector<size_t> tables_of_last_rank(const Division& division) const {
    std::vector<std::pair<double, size_t>> found;
    for (size_t i = 0; i < division.slices.size(); ++i)
      if (division.packed.ranks[i] == division.packed.last_rank)
        found.emplace_back(-division.slices[i].seconds, division.slices[i].table);
    if (division.packed.last_rank == 0)
      for (size_t t = 0; t < division.chosen.size(); ++t)
        if (division.chosen[t].treatment == Treatment::kRowParallel)
          found.emplace_back(-division.chosen[t].first_seconds, t);
    std::ranges::sort(found);
    std::vector<size_t> tables;
    for (const auto& [seconds, t] : found)
      if (std::ranges::find(tables, t) == tables.end()) tables.push_back(t);
    return tables;
  }

  static std::vector<Choice> others_of(const TableChoices& table, const Choice& choice) {
    std::vector<Choice> others;
    const SliceLimit none{kEndless, kEndless};
    if (choice.treatment == Treatment::kTableParallel)
      for (const int64_t n_slices :
           {choice.n_slices + 1, choice.n_slices + 2, 2 * choice.n_slices, choice.n_slices - 1})
        if (const auto other = table.in_slices(n_slices)) others.push_back(*other);
    for (const auto& other : {table.row_parallel(none), table.replicated()})
      if (other && other->treatment != choice.treatment) others.push_back(*other);
    if (choice.treatment != Treatment::kTableParallel)
      if (const auto other = table.finest()) others.push_back(*other);
    return others;
  }

  /// `room`: the seconds that a rank may take.
  std::vector<Choice> choose(const std::vector<TableChoices>& choices, const SliceLimit& limit, double room) const {
    std::vector<Choice> chosen = choose_at(choices, limit, room, {});
    if (std::isinf(memory_)) return chosen;
    const auto n_bytes = [&] {
      return std::accumulate(chosen.begin(), chosen.end(), 0.0,
                             [](double sum, const Choice& choice) { return sum + choice.n_bytes; });
    };
    // Raises the price of a byte, which turns replicas into slices, until slices have some room to spare.
    double price = room / memory_ / 64;
    for (int i = 0; i < 40 && n_bytes() > 0.97 * memory_; ++i, price *= 2)
      chosen = choose_at(choices, limit, room, {0, price});
    return chosen;
  }

  static std::vector<Choice> choose_at(const std::vector<TableChoices>& choices, const SliceLimit& limit, double room,
                                       const Prices& prices) {
    std::vector<Choice> chosen;
    chosen.reserve(choices.size());
    for (const TableChoices& table : choices) {
      auto choice = table.cheapest(limit, prices);
      // If no choice keeps to the limit, takes the closest one, row-parallel first.
      if (!choice) choice = table.row_parallel({kEndless, kEndless});
      if (!choice) choice = table.finest();
      chosen.push_back(choice ? *choice : *table.replicated());
    }
    relieve_first_rank(choices, limit, room, prices, chosen);
    return chosen;
  }

  /// Rank 0 has the first rows of all skewed row-parallel tables. If they take more than `room` seconds, the tables that relieve it at the least cost
  /// get another treatment.
  static void relieve_first_rank(const std::vector<TableChoices>& choices, const SliceLimit& limit, double room,
                                 const Prices& prices, std::vector<Choice>& chosen) {
    double most = 0;
    for (size_t t = 0; t < choices.size(); ++t)
      if (chosen[t].treatment == Treatment::kRowParallel) most += chosen[t].first_seconds;
    if (most <= room) return;
    struct Other {
      double lost_per_second;
      size_t table;
      Choice choice;
    };
    std::vector<Other> others;
    for (size_t t = 0; t < choices.size(); ++t) {
      if (chosen[t].treatment != Treatment::kRowParallel) continue;
      auto other = choices[t].table_parallel(limit);
      const auto replica = choices[t].replicated();
      if (replica && (!other || prices.of(*replica) < prices.of(*other))) other = replica;
      const double relief = chosen[t].first_seconds - chosen[t].seconds;
      if (other && relief > 0) others.push_back({(prices.of(*other) - prices.of(chosen[t])) / relief, t, *other});
    }
    std::ranges::stable_sort(others, {}, &Other::lost_per_second);
    for (const Other& other : others) {
      if (most <= room) return;
      most -= chosen[other.table].first_seconds;
      chosen[other.table] = other.choice;
    }
  }

  static std::vector<Slicing> slicings_of(const std::vector<Choice>& chosen) {
    std::vector<Slicing> slicings;
    for (const Choice& choice : chosen) slicings.push_back({choice.treatment, choice.n_slices, ""});
    return slicings;
  }

  Division deal_chosen(std::vector<Choice> chosen) {
    Ranks ranks(model_.n_ranks(), memory_);
    for (size_t t = 0; t < chosen.size(); ++t) add_common(t, chosen[t], ranks);
    Division division{std::move(chosen)};
    division.slices = loose_slices(model_, slicings_of(division.chosen));
    double sum = 0;
    for (const LooseSlice& slice : division.slices) sum += slice.seconds;
    const double mean = sum / static_cast<double>(model_.n_ranks());
    if (auto packed = pack(division.slices, std::move(ranks), std::max(mean, 1e-12)))
      division.packed = *std::move(packed);
    return division;
  }

  std::vector<TablePlan> plans_of(const std::vector<TableChoices>& choices, const Division& division) const {
    std::vector<Slicing> slicings = slicings_of(division.chosen);
    for (size_t t = 0; t < slicings.size(); ++t) slicings[t].reason = reason_of(choices[t], division.chosen[t]);
    return place(model_.tables(), slicings, division.slices, division.packed.ranks, model_.n_ranks());
  }

  /// Adds the load of a replicated or row-parallel table to each rank.
  void add_common(size_t t, const Choice& choice, Ranks& ranks) {
    const TableConfig& table = model_.tables()[t];
    if (choice.treatment == Treatment::kTableParallel) return;
    if (choice.treatment == Treatment::kReplicated) {
      for (double& seconds : ranks.seconds) seconds += choice.seconds;
      for (double& n_bytes : ranks.n_bytes) n_bytes += choice.n_bytes;
      return;
    }
    std::vector<double>& seconds = row_seconds_[t];
    for (int64_t rank = 0; rank < model_.n_ranks(); ++rank) {
      const Interval rows = balanced_part(table.n_rows, model_.n_ranks(), rank);
      if (static_cast<int64_t>(seconds.size()) == rank)
        seconds.push_back(model_.slice_seconds(t, rows, table.n_columns));
      ranks.seconds[rank] += seconds[rank];
      ranks.n_bytes[rank] += static_cast<double>(model_.slice_bytes(t, rows.length(), table.n_columns));
    }
  }

  std::string reason_of(const TableChoices& choices, const Choice& choice) const {
    const SliceLimit none{kEndless, kEndless};
    const double total = static_cast<double>(model_.n_ranks());
    std::string others;
    const auto add = [&](const std::optional<Choice>& other, std::string_view words) {
      if (other && other->treatment != choice.treatment)
        others += fmt::format("{}{} {}", others.empty() ? " against " : ", ", duration(other->seconds), words);
    };
    add(choices.table_parallel(none), "as one slice");
    add(choices.row_parallel(none), "by rows");
    add(choices.replicated(), "as replicas");
    const std::string what =
        choice.treatment == Treatment::kReplicated    ? "replicas take"
        : choice.treatment == Treatment::kRowParallel ? "by rows it takes"
        : choice.n_slices == 1                        ? "one slice takes"
                               : fmt::format("whole it would be {} on one rank; {} slices of columns take",
                                             duration(choices.table_parallel(none)->seconds * total), choice.n_slices);
    return fmt::format("{} {} of each rank in the mean{}", what, duration(choice.seconds), others);
  }

  const LoadModel& model_;
  const EmbeddingPlanOptions& options_;
  double memory_;
  std::vector<std::vector<double>> row_seconds_;  // per table and rank, for tables that were row-parallel once
  double best_seconds_ = kEndless;
  std::vector<TablePlan> best_;
};

}  // namespace

std::vector<TablePlan> balance_cost(const LoadModel& model, const EmbeddingPlanOptions& options) {
  return CostBalancer(model, options).run();
}

}  // namespace shardwise::detail
