#include "runtime/redistribute/alike_ranks.h"

#include "plans/traffic.h"
#include "runtime/redistribute/plan_cache.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardwise {
namespace {

/// Coordinates of other ranks in meshes that this rank knows.
class StandIns {
 public:
  explicit StandIns(const std::vector<SpecPtr>& specs) {
    for (const SpecPtr& spec : specs) roots_.insert({spec->mesh()->root().get(), spec->mesh()->root()});
  }

  /// The member of `mesh` with the coordinates that `rank` has in its own slice; nothing if there is no such slice.
  std::optional<int64_t> of(const MeshPtr& mesh, int64_t rank) {
    const auto [known, is_new] = known_.try_emplace({mesh.get(), rank});
    if (is_new) known->second = find(*mesh, rank);
    return known->second;
  }

 private:
  std::optional<int64_t> find(const DeviceMesh& mesh, int64_t rank) const {
    if (mesh.grid().coord_of(rank)) return rank;
    const MeshPtr root = mesh.root();
    if (root.get() == &mesh) return find_in_line(mesh, rank);
    const auto coord = coordinates_of(mesh, rank);
    return coord ? std::optional(mesh.grid().rank_at(*coord)) : std::nullopt;
  }

  /// For the ranks along a dim of another mesh, which does not tell that they are.
  std::optional<int64_t> find_in_line(const DeviceMesh& line, int64_t rank) const {
    if (line.ndim() != 1) return std::nullopt;
    for (const auto& [key, root] : roots_) {
      const auto here = root->grid().coord_of(line.grid().ranks[0]), there = root->grid().coord_of(rank);
      if (!here || !there) continue;
      for (int64_t m = 0; m < root->ndim(); ++m)
        if (root->size(m) == line.size() && root->group(m) && root->group(m)->ranks == line.grid().ranks)
          return line.grid().ranks[(*there)[m]];
    }
    return std::nullopt;
  }

  std::map<const DeviceMesh*, MeshPtr> roots_;
  std::map<std::pair<const DeviceMesh*, int64_t>, std::optional<int64_t>> known_;
};

/// The sizes of the rank's pieces; with `has_places`, also where they begin.
std::vector<Dims> facts_of(const Layout& layout, int64_t rank, bool has_places) {
  std::vector<Dims> facts;
  for (const Box& box : layout.boxes(rank)) {
    facts.push_back(box.sizes);
    if (has_places) facts.push_back(box.offsets);
  }
  return facts;
}

bool equal(const RankTraffic& a, const RankTraffic& b) {
  return a.sent == b.sent && a.received == b.received && a.n_messages == b.n_messages;
}

}  // namespace

std::optional<Dims> coordinates_of(const DeviceMesh& mesh, int64_t rank) {
  const MeshPtr root = mesh.root();
  const auto coord = root->grid().coord_of(rank);
  if (!coord || root.get() == &mesh) return coord;
  Dims in_slice;
  for (const DimNames& merged : mesh.dims_of_root()) {
    int64_t index = 0;
    for (const std::string& name : merged)
      index = index * root->size(root->dim_of(name)) + (*coord)[root->dim_of(name)];
    in_slice.push_back(index);
  }
  return in_slice;
}

std::vector<int64_t> alike_ranks(const MadeSpecs& made, const std::set<const Spec*>& by_place,
                                 std::vector<int64_t> others) {
  const std::vector<SpecPtr> specs = made.specs();
  StandIns stand_ins(specs);
  for (const SpecPtr& spec : specs) {
    const Layout& layout = spec->layout();
    const bool has_places = by_place.contains(spec.get());
    const std::vector<Dims> own = facts_of(layout, spec->mesh()->rank(), has_places);
    std::map<int64_t, bool> alike;  // by stand-in: many ranks have the same
    std::erase_if(others, [&](int64_t rank) {
      const auto stand_in = stand_ins.of(spec->mesh(), rank);
      const auto [known, is_new] = alike.try_emplace(stand_in.value_or(-1));
      if (is_new) known->second = own == (stand_in ? facts_of(layout, *stand_in, has_places) : std::vector<Dims>());
      return !known->second;
    });
  }
  const std::set<SpecPtr> known(specs.begin(), specs.end());
  PlanCache::of_thread().for_each([&](const SpecPtr& source, const OwnPlan& plan) {
    if (!known.contains(source)) return;  // of another world
    const int64_t rank = source->mesh()->rank();
    for (const OwnStep& own : plan.steps) {
      if (own.is_local) continue;
      const auto traffic_of = [&](int64_t of) { return traffic(own.step, source->element_bytes(), {}, of); };
      const RankTraffic here = traffic_of(rank);
      std::map<int64_t, bool> alike;
      std::erase_if(others, [&](int64_t other) {
        const auto stand_in = stand_ins.of(own.from->mesh(), other);
        const auto [known, is_new] = alike.try_emplace(stand_in.value_or(-1));
        if (is_new) known->second = equal(here, stand_in ? traffic_of(*stand_in) : RankTraffic());
        return !known->second;
      });
    }
  });
  return others;
}

}  // namespace shardwise
