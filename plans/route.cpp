#include "plans/route.h"

#include "placements/placement_list.h"
#include "plans/traffic.h"

#include <algorithm>
#include <map>
#include <set>

namespace shardwise {
namespace {

using Placements = std::vector<Placement>;

/// True if two reductions along different mesh dims may be done in either order.
bool commute(Reduce a, Reduce b) { return a == b || (is_linear(a) && is_linear(b)); }

/// True if mesh dim m cannot become Partial(`outer`) while a later mesh dim is Partial(`inner`): the neutral element of a product is 1, and
/// the later sum would add up n ones to n.
bool spoils(Reduce outer, Reduce inner) { return outer == Reduce::kProduct && inner == Reduce::kSum; }

/// True if some mesh dim later than `m` is a Partial whose reduction satisfies `test`.
template <class Test>
bool any_partial_within(const Layout& layout, size_t m, const Test& test) {
  const auto& placements = layout.placements();
  return std::any_of(placements.begin() + static_cast<std::ptrdiff_t>(m) + 1, placements.end(),
                     [&](const Placement& inner) { return inner.is_partial() && test(inner.reduce()); });
}

Layout with(const Layout& layout, Placements placements) {
  return Layout(layout.sizes(), layout.grid_ptr(), std::move(placements));
}

std::optional<Layout> maybe_with(const Layout& layout, const Placements& placements) {
  try {
    return with(layout, placements);
  } catch (const c10::ValueError&) {
    return std::nullopt;
  }
}

/// `layout` with mesh dim `m` placed as `placement`. If explicit sizes or a strided split then do not fit, torch.chunk's split replaces them on
/// mesh dim `m`, or on all mesh dims that shard this tensor dim. If the placement is in pieces and cannot stand beside another mesh dim's placement, `m`
/// gets Shard(0).
Layout changed(const Layout& layout, size_t m, const Placement& placement) {
  Placements placements = layout.placements().vec();
  placements[m] = placement;
  if (!placement.divides()) return with(layout, std::move(placements));
  if (auto result = maybe_with(layout, placements)) return *result;
  if (!placement.is_shard()) return changed(layout, m, Placement::shard(0));
  const Placement plain = Placement::shard(placement.dim());
  placements[m] = plain;
  if (auto result = maybe_with(layout, placements)) return *result;
  for (Placement& other : placements)
    if (other.divided_dim() == placement.dim()) other = plain;
  return with(layout, std::move(placements));
}

/// The step that changes only mesh dim `m`.
Step step_of(const Layout& from, Layout to, size_t m) {
  const Placement &before = from.placements()[m], &after = to.placements()[m];
  Step step{Step::Kind::kExchange, from, std::move(to), -1};
  if (before.is_partial()) {
    step.kind = after.divides() ? Step::Kind::kReduce : Step::Kind::kAllReduce;
    step.reduce = before.reduce();
    step.mesh_dim = static_cast<int>(m);
  } else if (after.is_partial()) {
    step.kind = Step::Kind::kMakePartial;
    step.reduce = after.reduce();
    step.mesh_dim = static_cast<int>(m);
  }
  return step;
}

/// Builds the direct route within one mesh.
class DirectRoute {
 public:
  DirectRoute(const Layout& source, const Layout& destination) : now_(source), end_(destination) {
    std::vector<bool> leaves(now_.placements().size());
    for (size_t m = 0; m < leaves.size(); ++m) {  // a dim marked for an earlier one can mark later ones too
      const Placement &before = now_.placements()[m], &after = end_.placements()[m];
      if (before == after && !leaves[m]) continue;
      if (before.is_partial()) leaves[m] = true;
      for (size_t later = m + 1; later < leaves.size();
           ++later) {  // a Partial that stays is reduced first, then made again
        const Placement& inner = now_.placements()[later];
        if (!inner.is_partial()) continue;
        const bool is_first = before.is_partial() && !commute(before.reduce(), inner.reduce());
        if (is_first || (after.is_partial() && spoils(after.reduce(), inner.reduce()))) leaves[later] = true;
      }
    }
    for (size_t m = 0; m < leaves.size(); ++m)
      if (leaves[m]) leaving_.push_back(m);
  }

  std::vector<Step> run() {
    std::vector<size_t> waiting;  // all-reduces that may come before or after the exchange
    const bool may_wait = commutes();
    for (auto m = leaving_.rbegin(); m != leaving_.rend(); ++m) {
      if (end_.placements()[*m].divides())
        go(*m, best_shard(*m));
      else if (may_wait)
        waiting.push_back(*m);
      else
        go(*m, Placement::replicate());
    }
    if (!shrinks(waiting)) all_reduce(waiting);
    exchange();
    all_reduce(waiting);
    for (size_t m = 0; m < end_.placements().size(); ++m)
      if (!(now_.placements()[m] == end_.placements()[m])) go(m, end_.placements()[m]);
    return std::move(steps_);
  }

 private:
  bool commutes() const {
    return std::ranges::all_of(leaving_, [&](size_t m) {
      return commute(now_.placements()[leaving_[0]].reduce(), now_.placements()[m].reduce());
    });
  }

  /// The placement into which mesh dim `m` is best reduced. This is its final placement, unless another mesh dim shards the same tensor dim
  /// and the boxes would not nest; then another tensor dim may receive fewer bytes.
  Placement best_shard(size_t m) const {
    const Placement& wanted = end_.placements()[m];
    if (!wanted.is_shard() || !is_sharded_elsewhere(m, wanted.dim())) return wanted;
    Placement best = wanted;
    int64_t least = received_by(m, wanted);
    for (int64_t dim = 0; dim < now_.dim(); ++dim) {
      if (is_sharded_elsewhere(m, dim)) continue;
      const int64_t received = received_by(m, Placement::shard(dim));
      if (received >= least) continue;
      least = received;
      best = Placement::shard(dim);
    }
    return best;
  }

  bool is_sharded_elsewhere(size_t m, int64_t dim) const {
    const auto splitting = mesh_dims_splitting(now_.placements(), dim);
    return splitting.size() > 1 || (splitting.size() == 1 && splitting[0] != static_cast<int64_t>(m));
  }

  /// Elements that the sampled ranks receive on the route that starts by reducing `m` into `placement`.
  int64_t received_by(size_t m, const Placement& placement) const {
    std::vector<Step> steps{step_of(now_, changed(now_, m, placement), m)};
    for (Step& step : DirectRoute(steps[0].to, end_).run()) steps.push_back(std::move(step));
    const std::vector<int64_t> ranks = evenly_spaced(now_.grid().ranks, kSampledRanks);
    int64_t received = 0;
    for (const Step& step : steps)
      for (const int64_t rank : ranks) received += traffic(step, 1, {}, rank).received;
    return received;
  }

  void go(size_t m, const Placement& placement) {
    steps_.push_back(step_of(now_, changed(now_, m, placement), m));
    now_ = steps_.back().to;
  }

  void all_reduce(std::vector<size_t>& mesh_dims) {
    if (is_of_all_ranks(mesh_dims))
      all_reduce_at_once(mesh_dims);
    else
      for (const size_t m : mesh_dims) go(m, Placement::replicate());
    mesh_dims.clear();
  }

  /// True if the terms of all ranks of the mesh are combined by one reduction.
  bool is_of_all_ranks(const std::vector<size_t>& mesh_dims) const {
    int64_t n_ranks = 1;
    for (const size_t m : mesh_dims) {
      n_ranks *= now_.grid().shape[m];
      if (now_.placements()[m].terms() != now_.placements()[mesh_dims[0]].terms()) return false;
    }
    return mesh_dims.size() > 1 && n_ranks == now_.grid().size();
  }

  /// One message less per further mesh dim, and fewer bytes: 2 (n - 1) / n of the tensor for all n ranks.
  void all_reduce_at_once(const std::vector<size_t>& mesh_dims) {
    Placements placements = now_.placements().vec();
    for (const size_t m : mesh_dims) placements[m] = Placement::replicate();
    steps_.push_back({Step::Kind::kAllReduce, now_, with(now_, std::move(placements)), -1,
                      now_.placements()[mesh_dims[0]].reduce()});
    now_ = steps_.back().to;
  }

  /// The placements after one exchange: mesh dims that are Partial now stay Partial, and mesh dims that end as Partial are replicated for
  /// now.
  Placements exchanged() const {
    Placements result = end_.placements().vec();
    for (size_t m = 0; m < result.size(); ++m) {
      if (now_.placements()[m].is_partial())
        result[m] = now_.placements()[m];
      else if (result[m].is_partial())
        result[m] = Placement::replicate();
    }
    return result;
  }

  bool shrinks(const std::vector<size_t>& waiting) const {
    if (waiting.empty() || !now_.has_one_box_each() || !end_.has_one_box_each()) return false;
    const Dims first(now_.placements().size(), 0);
    return with(now_, exchanged()).box_at(first).numel() < now_.box_at(first).numel();
  }

  void exchange() {
    Layout to = with(now_, exchanged());
    if (to == now_) return;
    steps_.push_back({Step::Kind::kExchange, now_, to, -1});
    now_ = std::move(to);
  }

  Layout now_;
  const Layout& end_;
  std::vector<size_t> leaving_;
  std::vector<Step> steps_;
};

/// Moves to another mesh: reductions are done in the old mesh, new Partial mesh dims are made in the new one.
std::vector<Step> steps_between_meshes(const Layout& source, const Layout& destination) {
  const auto whole = [](const Layout& layout) { return with(layout, without_partial(layout.placements())); };
  std::vector<Step> steps = DirectRoute(source, whole(source)).run();
  steps.push_back({Step::Kind::kExchange, whole(source), whole(destination), -1});
  for (Step& step : DirectRoute(whole(destination), destination).run()) steps.push_back(std::move(step));
  return steps;
}

/// Dijkstra's search: a state is a choice among `candidates_` for each mesh dim.
class FastestRoute {
 public:
  FastestRoute(const Layout& source, const Layout& destination, int64_t element_bytes, const std::vector<Link>& links)
      : source_(source), destination_(destination), element_bytes_(element_bytes), links_(links) {
    for (size_t m = 0; m < source.placements().size(); ++m) {
      auto& list = candidates_.emplace_back();
      const auto add = [&](const Placement& placement) {
        if (std::ranges::find(list, placement) == list.end()) list.push_back(placement);
      };
      add(source.placements()[m]);
      add(destination.placements()[m]);
      add(Placement::replicate());
      for (int64_t dim = 0; dim < source.dim(); ++dim) add(Placement::shard(dim));
    }
  }

  std::vector<Step> run() {
    const State start(candidates_.size(), 0);
    best_[start] = {0, start, std::nullopt};
    open_.insert({0, start});
    for (int n_states = 0; !open_.empty() && n_states < kMaxStates; ++n_states) {
      const State state = open_.begin()->second;
      open_.erase(open_.begin());
      const Layout here = with(source_, placements_of(state));
      if (here == destination_) return path_to(state);
      for (size_t m = 0; m < state.size(); ++m)
        for (size_t choice = 0; choice < candidates_[m].size(); ++choice)
          if (static_cast<int>(choice) != state[m]) consider(state, here, m, choice);
    }
    return direct_steps(source_, destination_);
  }

 private:
  static constexpr double kLeastSeconds = 1e-9;
  static constexpr int kMaxStates = 1000;  // states that steps are tried from
  using State = std::vector<int>;
  struct Arrival {
    double seconds = 0;
    State before;
    std::optional<Step> step;
  };

  Placements placements_of(const State& state) const {
    Placements placements;
    for (size_t m = 0; m < state.size(); ++m) placements.push_back(candidates_[m][state[m]]);
    return placements;
  }

  void consider(const State& state, const Layout& here, size_t m, size_t choice) {
    State next = state;
    next[m] = static_cast<int>(choice);
    const Placement& placement = candidates_[m][choice];
    const bool is_right_partial = placement == destination_.placements()[m] && here.placements()[m].is_whole();
    const auto is_spoiled_by = [&](Reduce inner) { return spoils(placement.reduce(), inner); };
    if (placement.is_partial() && (!is_right_partial || any_partial_within(here, m, is_spoiled_by))) return;
    const auto comes_first = [&](Reduce inner) { return !commute(here.placements()[m].reduce(), inner); };
    if (here.placements()[m].is_partial() && any_partial_within(here, m, comes_first)) return;
    const auto there = maybe_with(source_, placements_of(next));
    if (!there) return;  // explicit sizes do not fit this split
    Step step = step_of(here, *there, m);
    const double seconds = best_[state].seconds + slowest(step);
    const auto known = best_.find(next);
    if (known != best_.end() && known->second.seconds <= seconds) return;
    if (known != best_.end()) open_.erase({known->second.seconds, next});
    best_[next] = {seconds, state, std::move(step)};
    open_.insert({seconds, next});
  }

  /// The time of the slowest sampled rank. Even a local step costs a little, so that fewer steps win.
  double slowest(const Step& step) const {
    double seconds = kLeastSeconds;
    for (const int64_t rank : evenly_spaced(step.from.grid().ranks, kSampledRanks))
      seconds = std::max(seconds, traffic(step, element_bytes_, links_, rank).seconds);
    return seconds;
  }

  std::vector<Step> path_to(State state) {
    std::vector<Step> steps;
    double one_by_one = 0, direct = 0;
    while (best_[state].step) {
      one_by_one += slowest(*best_[state].step);
      steps.insert(steps.begin(), *best_[state].step);
      state = best_[state].before;
    }
    auto at_once = direct_steps(source_, destination_);
    for (const Step& step : at_once) direct += slowest(step);
    return direct <= one_by_one ? at_once : steps;
  }

  const Layout& source_;
  const Layout& destination_;
  int64_t element_bytes_;
  const std::vector<Link>& links_;
  std::vector<Placements> candidates_;
  std::map<State, Arrival> best_;
  std::set<std::pair<double, State>> open_;
};

}  // namespace

std::vector<Step> direct_steps(const Layout& source, const Layout& destination) {
  return source.grid() == destination.grid() ? DirectRoute(source, destination).run()
                                             : steps_between_meshes(source, destination);
}

std::vector<Step> fastest_steps(const Layout& source, const Layout& destination, int64_t element_bytes,
                                const std::vector<Link>& links) {
  return FastestRoute(source, destination, element_bytes, links).run();
}

}  // namespace shardwise
