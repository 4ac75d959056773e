#include "plans/plan.h"

#include "plans/pattern.h"
#include "plans/route.h"
#include "plans/traffic.h"
#include "plans/transfers.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwise {
namespace {

/// True if no rank receives anything. Only ranks of the destination can receive.
bool is_local(const Step& step) {
  return std::ranges::none_of(step.to.grid().ranks,
                              [&](int64_t rank) { return traffic(step, 1, {}, rank).received > 0; });
}

/// True if the ranks change but the pieces do not.
bool is_permutation(const Step& step) {
  return step.from.grid().shape == step.to.grid().shape && step.from.placements() == step.to.placements();
}

bool gathers(const Step& step) {
  if (step.from.placements().size() != step.to.placements().size()) return step.to.is_replicated();
  for (size_t m = 0; m < step.to.placements().size(); ++m)
    if (!(step.from.placements()[m] == step.to.placements()[m]) && !step.to.placements()[m].is_whole()) return false;
  return true;
}

void check(const Layout& source, const Layout& destination, const PlanOptions& options) {
  SW_CHECK_VALUE(source.sizes() == destination.sizes(),
                 "[redistribute] {} cannot become {}: a move cannot change the sizes. Reshape the tensor before or "
                 "after the move.",
                 to_string(source), to_string(destination));
  SW_CHECK_VALUE(options.memory_cap >= 0,
                 "[redistribute] memory_cap is {} bytes: it cannot be negative. Use 0 for no limit.",
                 options.memory_cap);
  SW_CHECK_VALUE(
      options.links.empty() || options.links.size() == source.placements().size(),
      "[redistribute] {} links are given for a mesh of {} dims. Give one per mesh dim of the source, or none.",
      options.links.size(), source.placements().size());
  check_links("redistribute", options.links);
}

/// Splits the boxes into rounds so that no rank's buffers exceed the cap.
void keep_below(int64_t cap, int64_t element_bytes, Step& step) {
  if (step.from.dim() == 0) return;
  int64_t most = 0;
  for (const RankGrid* grid : {&step.from.grid(), &step.to.grid()})
    for (const int64_t rank : grid->ranks) most = std::max(most, traffic(step, element_bytes, {}, rank).buffer_bytes);
  const auto sizes = step.from.sizes();
  const int64_t n_slabs = *std::max_element(sizes.begin(), sizes.end());  // no box has more slabs
  step.n_rounds = std::clamp<int64_t>(most / cap + (most % cap > 0 ? 1 : 0), 1, std::max<int64_t>(n_slabs, 1));
}

/// Splits large reductions into rounds of at least 8 MiB per term, at most as many as terms arrive. A rank then holds one term of its part at a time,
/// not all, in the same time. Smaller rounds take longer than one.
void split_large_terms(int64_t element_bytes, Step& step) {
  constexpr int64_t kBytesPerRound = int64_t{8} << 20;
  int64_t n_parts = 1;
  for (size_t m = 0; m < step.to.placements().size(); ++m)
    if (step.to.placements()[m].divides()) n_parts *= step.to.grid().shape[m];
  const int64_t n_bytes =
      element_bytes * Box::whole(step.to.sizes()).numel() / n_parts;  // of a rank's part, on average
  step.n_rounds = std::clamp<int64_t>(n_bytes / kBytesPerRound, 1, std::max<int64_t>(step.n_terms() - 1, 1));
}

}  // namespace

void check_links(const char* op, const std::vector<Link>& links) {
  for (const Link& link : links)
    SW_CHECK_VALUE(link.latency_us >= 0 && std::isfinite(link.latency_us) && link.gb_per_s > 0,
                   "[{}] a link of {} us and {} GB/s is impossible. Give a latency of at least 0 and a rate above 0.",
                   op, link.latency_us, link.gb_per_s);
}

Pattern pattern_of(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kReduce:
      return Pattern::kReduceScatter;
    case Step::Kind::kAllReduce:
      return Pattern::kAllReduce;
    case Step::Kind::kMakePartial:
      return Pattern::kMakePartial;
    case Step::Kind::kExchange:
      break;
  }
  if (is_local(step)) return Pattern::kSlice;
  if (!(step.from.grid() == step.to.grid()) && is_permutation(step)) return Pattern::kPermute;
  return gathers(step) ? Pattern::kAllGather : Pattern::kAllToAll;
}

bool sends(const Step& step) {
  const Pattern pattern = pattern_of(step);
  return pattern != Pattern::kSlice && pattern != Pattern::kMakePartial;
}

const char* name_of(Pattern pattern) {
  static constexpr std::array kNames{"slice",      "make_partial",   "permute",   "all_gather",
                                     "all_to_all", "reduce_scatter", "all_reduce"};
  return kNames[static_cast<size_t>(pattern)];
}

std::string name_of(const Step& step) {
  std::string name = name_of(pattern_of(step));
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string Plan::route() const {
  const bool any = std::ranges::any_of(steps, &sends);
  std::vector<std::string> names;
  for (const Step& step : steps)
    if (!any || sends(step)) names.push_back(name_of(step));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, " + "));
}

Plan plan(const Layout& source, const Layout& destination, int64_t element_bytes, const PlanOptions& options) {
  check(source, destination, options);
  Plan result{source, destination, element_bytes, options, {}};
  if (source == destination) return result;
  const bool by_time = options.objective == PlanOptions::Objective::kTime;
  const bool has_choice =
      source.grid() == destination.grid() && source.has_one_box_each() && destination.has_one_box_each();
  result.steps = by_time && has_choice ? fastest_steps(source, destination, element_bytes, options.links)
                                       : direct_steps(source, destination);
  for (Step& step : result.steps) {
    if (options.memory_cap > 0 && step.has_boxes())
      keep_below(options.memory_cap, element_bytes, step);
    else if (step.kind == Step::Kind::kReduce)
      split_large_terms(element_bytes, step);
  }
  return result;
}

}  // namespace shardwise
