#include "runtime/tensor/mesh_slices.h"

#include "runtime/comm/collectives.h"
#include "runtime/tensor/mesh_families.h"
#include "tests/support/either_world.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>

namespace shardwise::mesh_slices_test {
namespace {

using Ranks = std::vector<int64_t>;

Ranks range(int64_t begin, int64_t end) {
  Ranks ranks(end - begin);
  std::iota(ranks.begin(), ranks.end(), begin);
  return ranks;
}

MeshPtr named(Dims shape, Ranks ranks, DimNames names) {
  return DeviceMesh::create(World::current(), c10::kCPU, {std::move(shape), std::move(ranks)}, std::move(names));
}

/// (pp=2, dp=1, tp=3) on ranks 0 to 5.
MeshPtr cube() { return named({2, 1, 3}, range(0, 6), {"pp", "dp", "tp"}); }

int64_t sum_over(const Group& group, int64_t own) {
  const at::Tensor sum = at::full({1}, own, at::kLong);
  all_reduce(group, sum, Reduce::kSum);
  return sum.item<int64_t>();
}

/// The lines of `mesh` as groups that the World does not know of.
GivenGroups::ByRanks lines_of(const DeviceMesh& mesh) {
  GivenGroups::ByRanks given;
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim)
    if (const GroupPtr& line = mesh.group(dim)) given[line->ranks] = std::make_shared<Group>(*line);
  return given;
}

TEST(MeshSlicesTest, SlicesMergeDimsInTheGivenOrder) {
  const RankGrid grid{{2, 3, 2}, range(0, 12)};
  const auto rows = slices(grid, {{2}, {0}});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1], (RankGrid{{2, 2}, {2, 8, 3, 9}}));
  const auto merged = slices(grid, {{0, 2}});
  ASSERT_EQ(merged.size(), 3u);
  EXPECT_EQ(merged[2], (RankGrid{{4}, {4, 5, 10, 11}}));
  EXPECT_EQ(slices(grid, {{0}, {1}, {2}}), (std::vector<RankGrid>{grid}));
  EXPECT_EQ(slices({{1, 1}, {7}}, {{1}}), (std::vector<RankGrid>{{{1}, {7}}}));
  EXPECT_EQ(positions({"a", "b", "c"}, {{"c"}, {"a", "b"}}), (MergedDims{{2}, {0, 1}}));
  expect_error("no mesh dim is called \"d\", \"e\". The mesh has \"a\", \"b\"",
               error_of<UnknownMeshDim>([] { positions({"a", "b"}, {{"d"}, {"a", "e"}}); }));
}

TEST(MeshSlicesTest, ASliceKnowsItsRootAndKeepsIt) {
  run_ranks(7, [](World& world) {
    MeshPtr mesh = cube();
    const MeshPtr part = mesh->submesh({"tp", "pp"}), line = part->submesh({"tp"});
    EXPECT_EQ(part, mesh->submesh({"tp", "pp"}));
    EXPECT_EQ(line, mesh->submesh({"tp"}));
    EXPECT_EQ(part->root(), mesh);
    EXPECT_EQ(line->root(), mesh);
    EXPECT_EQ(mesh->root(), mesh);
    EXPECT_EQ(part->dims_of_root(), (std::vector<DimNames>{{"tp"}, {"pp"}}));
    EXPECT_EQ(part->grid(), (RankGrid{{3, 2}, {0, 3, 1, 4, 2, 5}}));
    EXPECT_EQ(mesh->submesh({"pp", "dp", "tp"}), mesh);
    EXPECT_EQ(part->on_meta()->root(), mesh->on_meta());
    const int64_t row = world.rank() / 3 % 2;  // rank 6 is outside: it holds the first slice
    EXPECT_EQ(line->grid().ranks, range(row * 3, row * 3 + 3));
    EXPECT_EQ(line->is_member(), world.rank() < 6);
    const DeviceMesh* const address = mesh.get();
    mesh = nullptr;
    EXPECT_EQ(line->root().get(), address);
    expect_error("dim \"tp\" is named twice", error_of<c10::ValueError>([&] { part->submesh({"tp", "tp"}); }));
    expect_error("no mesh dim is called \"dp\"", error_of<UnknownMeshDim>([&] { part->submesh({"dp"}); }));
    const MeshPtr nameless = DeviceMesh::create(World::current(), c10::kCPU, {{2, 3}, range(0, 6)});
    expect_error("without mesh_dim_names", error_of<c10::Error>([&] { nameless->submesh({"tp"}); }));
    expect_error("without mesh_dim_names", error_of<c10::Error>([&] { nameless->flatten(); }));
  });
}

TEST(MeshSlicesTest, ALineHasNoNameAndIsMadeByOneRankAlone) {
  run_ranks(7, [](World& world) {
    const MeshPtr mesh = cube();
    if (world.rank() == 2 || world.rank() == 6) {
      const MeshPtr line = mesh->line(2);
      EXPECT_EQ(line, mesh->line(2));
      EXPECT_EQ(line, mesh->on_meta()->line(2)->with_memory());
      EXPECT_EQ(line->group(), mesh->group(2));
      EXPECT_EQ(line->grid().ranks, range(0, 3));
      EXPECT_TRUE(line->names().empty());
      EXPECT_EQ(line->root(), line);
      EXPECT_EQ(line->line(0), line);
    }
    everyone(world);
  });
}

TEST(MeshSlicesTest, TheRootKnowsAFlattenedDimByItsName) {
  run_ranks(6, [](World& world) {
    const MeshPtr mesh = cube();
    {
      const MeshPtr flat = mesh->submesh({"pp", "dp"})->flatten();
      EXPECT_EQ(flat->names(), DimNames{"pp_dp"});
      EXPECT_EQ(flat, mesh->submesh({"pp_dp"}));
      EXPECT_EQ(flat, mesh->submesh({"tp"})->submesh({"pp_dp"}));
      EXPECT_EQ(flat, mesh->submesh({"pp", "dp"})->flatten("pp_dp"));
      EXPECT_EQ(flat->flatten("pp_dp"), flat);
      EXPECT_EQ(flat->root(), mesh);
      EXPECT_EQ(flat->dims_of_root(), (std::vector<DimNames>{{"pp", "dp"}}));
    }
    const MeshPtr part = mesh->submesh({"tp", "pp_dp"});  // its last user has gone: it is made again
    EXPECT_EQ(part->grid(), (RankGrid{{3, 2}, {0, 3, 1, 4, 2, 5}}));
    EXPECT_EQ(part->dims_of_root(), (std::vector<DimNames>{{"tp"}, {"pp", "dp"}}));
    EXPECT_EQ(part->submesh({"pp_dp"})->grid().ranks, (Ranks{world.rank() % 3, world.rank() % 3 + 3}));
    EXPECT_EQ(sum_over(*part->submesh({"pp_dp"})->group(), world.rank()), world.rank() % 3 * 2 + 3);
    EXPECT_EQ(mesh->flatten("all")->grid().ranks, range(0, 6));
    EXPECT_EQ(mesh->flattened(), (DimNames{"all", "pp_dp"}));
    expect_error("\"tp\" already exists as a dim", error_of<c10::ValueError>([&] { mesh->flatten("tp"); }));
    expect_error("of other ranks has been created before",
                 error_of<c10::ValueError>([&] { mesh->submesh({"dp", "tp"})->flatten("all"); }));
    expect_error("no mesh dim is called \"dp\"",
                 error_of<UnknownMeshDim>([&] { mesh->submesh({"pp", "tp"})->submesh({"tp", "pp_dp"}); }));
  });
}

TEST(MeshSlicesTest, AMeshThatAllRanksMadeStaysARoot) {
  run_ranks(4, [](World& world) {
    const MeshPtr grid = named({2, 2}, range(0, 4), {"dp", "tp"}), row = named({2}, {0, 1}, {"tp"});
    const MeshPtr tp = grid->submesh({"tp"});
    EXPECT_EQ(tp == row, world.rank() < 2);
    EXPECT_EQ(row->root(), row);
    EXPECT_EQ(tp->root(), world.rank() < 2 ? row : grid);
    const MeshPtr made = named({4}, range(0, 4), {"world"})->unflatten(0, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(made, grid);
    EXPECT_EQ(grid->root(), grid);
    EXPECT_EQ(DeviceMesh::concatenate({tp, grid->submesh({"dp"})}), grid->submesh({"tp", "dp"}));
  });
}

TEST(MeshSlicesTest, AMeshWithSlicesOfItsOwnStaysARoot) {
  run_ranks(4, [](World&) {
    const auto world = World::current();
    named({2, 2}, range(0, 4), {"a", "b"});  // has all groups
    const MeshPtr part = DeviceMesh::create_by_members(world, c10::kCPU, {{2, 2}, range(0, 4)}, {"x", "y"});
    part->flatten("xy");
    const MeshPtr grid = named({1, 2, 2}, range(0, 4), {"w", "x", "y"});
    EXPECT_EQ(grid->submesh({"x", "y"}), part);
    EXPECT_EQ(part->root(), part);
    EXPECT_EQ(part->submesh({"xy"})->root(), part);
  });
}

TEST(MeshSlicesTest, UnflattenedSlicesAreMadeOnAllRanks) {
  run_ranks(7, [](World& world) {
    const MeshPtr mesh = named({6, 1}, range(0, 6), {"world", "one"});
    const MeshPtr grid = mesh->unflatten(0, {3, 2}, {"dp", "tp"});
    EXPECT_EQ(grid->names(), (DimNames{"dp", "tp", "one"}));
    EXPECT_EQ(grid->grid(), (RankGrid{{3, 2, 1}, range(0, 6)}));
    EXPECT_EQ(grid->root(), grid);
    const MeshPtr halves = grid->submesh({"dp"})->unflatten(-1, {1, 3}, {"outer", "inner"});
    EXPECT_EQ(halves->names(), (DimNames{"outer", "inner"}));
    const int64_t column = world.rank() < 6 ? world.rank() % 2 : 0;
    EXPECT_EQ(halves->grid(), (RankGrid{{1, 3}, {column, column + 2, column + 4}}));
    EXPECT_EQ(halves->is_member(), world.rank() < 6);
    if (halves->is_member()) {
      EXPECT_EQ(sum_over(*halves->group(1), 1), 3);
    }
    EXPECT_EQ(halves->on_meta()->unflatten(0, {1}, {"o"})->is_meta(), true);
    expect_error("there is no dim 2 in", error_of<c10::ValueError>([&] { mesh->unflatten(2, {6}, {"a"}); }));
    expect_error("have the product 4", error_of<c10::ValueError>([&] { mesh->unflatten(0, {2, 2}, {"a", "b"}); }));
    expect_error("should have same length", error_of<c10::Error>([&] { mesh->unflatten(0, {3, 2}, {"a"}); }));
  });
}

TEST(MeshSlicesTest, SlicesOfOneMeshAreJoinedInOrder) {
  run_ranks(6, [](World&) {
    const MeshPtr mesh = cube();
    EXPECT_EQ(DeviceMesh::concatenate({mesh->submesh({"tp"}), mesh->submesh({"pp"})}), mesh->submesh({"tp", "pp"}));
    EXPECT_EQ(DeviceMesh::concatenate({mesh->submesh({"pp", "dp"}), mesh->submesh({"tp"})}), mesh);
    const MeshPtr flat = mesh->submesh({"dp", "tp"})->flatten("mp");
    EXPECT_EQ(DeviceMesh::concatenate({mesh->submesh({"pp"}), flat}), mesh->submesh({"pp", "mp"}));
    const MeshPtr other = named({6}, range(0, 6), {"ep"});
    for (const std::vector<MeshPtr>& wrong :
         {std::vector<MeshPtr>{}, {mesh, other}, {mesh->submesh({"tp"}), mesh->submesh({"tp"})}})
      expect_error("they are not slices of one mesh", error_of<c10::Error>([&] { DeviceMesh::concatenate(wrong); }));
  });
}

TEST(MeshSlicesTest, MembersAloneSliceAMeshOverGivenGroups) {
  run_ranks(9, [](World& world) {
    const MeshPtr all = named({2, 2, 2}, range(1, 9), {"x", "y", "z"});
    if (world.rank() == 0) {
      EXPECT_EQ(all->coord(), std::nullopt);
      return;
    }
    const auto lines = lines_of(*all);
    MeshPtr mesh;
    {
      const GivenGroups scope(lines);
      mesh = DeviceMesh::create(World::current(), c10::kCPU, {{2, 2, 2}, range(1, 9)}, {"a", "b", "c"});
    }
    EXPECT_EQ(mesh->groups(), MeshGroups::kGiven);
    EXPECT_TRUE(related_families(*mesh).empty());
    for (const auto& [name, dim] : {std::pair("a", 0), {"b", 1}, {"c", 2}}) {
      const MeshPtr line = mesh->submesh({name});
      EXPECT_EQ(line->group(), lines.at(mesh->group(dim)->ranks));
      EXPECT_EQ(line->root(), mesh);
      EXPECT_EQ(mesh->line(dim)->group(), line->group());
    }
    const MeshPtr part = mesh->submesh({"c", "a"}), flat = part->flatten("ca");
    EXPECT_EQ(sum_over(*part->group(), 1), 4);
    EXPECT_EQ(part->group(0), lines.at(mesh->group(2)->ranks));
    EXPECT_EQ(flat->size(), 4);
    EXPECT_EQ(mesh->submesh({"b", "ca"})->group(1)->ranks, part->group()->ranks);
    const MeshPtr split = mesh->submesh({"b"})->unflatten(0, {1, 2}, {"one", "two"});
    EXPECT_EQ(split->group(1), lines.at(mesh->group(1)->ranks));
    EXPECT_EQ(mesh->submesh({"a"}), mesh->submesh({"a"}));
  });
}

TEST(MeshSlicesTest, AGroupThatMembersMakeIsLikeTheOneOfTheFirstDim) {
  run_ranks(5, [](World& world) {
    const auto process_group = [&](const Ranks& ranks) {
      const GroupPtr group = world.group(ranks);
      return group ? group->process_group : nullptr;
    };
    std::vector<std::pair<Ranks, Ranks>> made;  // ranks, and those of the group that they are like
    const auto own = std::make_shared<World>(world.rank(), 5, everyone(world)->process_group, process_group,
                                             [&](const Ranks& ranks, const Group* like) {
                                               made.emplace_back(ranks, like ? like->ranks : Ranks{});
                                               return process_group(ranks);
                                             });
    if (world.rank() == 4) return;
    const int64_t row = world.rank() / 2 * 2, column = world.rank() % 2;
    GivenGroups::ByRanks lines;
    for (const Ranks& ranks : {Ranks{column, column + 2}, Ranks{row, row + 1}})
      lines[ranks] = std::make_shared<Group>(*world.group(ranks));
    const auto make = [&] {
      const GivenGroups scope(lines);
      return DeviceMesh::create(own, c10::kCPU, {{2, 1, 2}, range(0, 4)}, {"dp", "one", "tp"});
    };
    const MeshPtr mesh = make();
    EXPECT_EQ(made, (std::vector<std::pair<Ranks, Ranks>>{{range(0, 4), {column, column + 2}}}));
    EXPECT_EQ(mesh, make());
    EXPECT_EQ(mesh->group(0), lines.at({column, column + 2}));
    EXPECT_EQ(sum_over(*mesh->group(), 1), 4);
    made.clear();
    EXPECT_EQ(mesh->submesh({"tp", "dp"})->group(), mesh->group());  // the mesh has it
    EXPECT_TRUE(made.empty());
  });
}

TEST(MeshSlicesTest, PartsOfAMeshWithoutGroupsHaveNone) {
  const GivenGroups absent(world_without_groups(1, 6));
  const MeshPtr mesh = cube();
  for (const MeshPtr& part : {mesh, mesh->submesh({"pp", "tp"}), mesh->flatten("all"), mesh->line(2),
                              mesh->unflatten(2, {3, 1}, {"a", "b"})}) {
    EXPECT_EQ(part->groups(), MeshGroups::kAbsent);
    EXPECT_EQ(part->group()->process_group, nullptr);
    EXPECT_TRUE(part->is_member());
  }
}

TEST(MeshSlicesTest, MeshesOfTheSameRanksShareTheirList) {
  run_ranks(5, [](World&) {
    const MeshPtr mesh = named({4}, {3, 0, 2, 1}, {"a"}), same = named({2, 2}, range(0, 4), {"a", "b"});
    const MeshPtr few = named({3}, {0, 2, 3}, {"a"}), other = named({3}, {1, 2, 4}, {"a"});
    const MeshPtr all = named({5}, range(0, 5), {"a"});
    EXPECT_TRUE(have_same_ranks(*mesh, *same) && have_same_ranks(*mesh, *mesh->on_meta()));
    EXPECT_FALSE(have_same_ranks(*mesh, *few));
    EXPECT_TRUE(has_all_ranks_of(*mesh, *same) && has_all_ranks_of(*mesh, *few) && has_all_ranks_of(*all, *other));
    EXPECT_FALSE(has_all_ranks_of(*few, *mesh) || has_all_ranks_of(*mesh, *other) || has_all_ranks_of(*few, *other));
  });
}

}  // namespace
}  // namespace shardwise::mesh_slices_test
