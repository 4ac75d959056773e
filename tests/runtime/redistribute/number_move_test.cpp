#include "runtime/redistribute/number_move.h"

#include "runtime/comm/events.h"
#include "runtime/redistribute/moving.h"
#include "tests/support/either_world.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::number_move_test {
namespace {

MeshPtr mesh_of(std::vector<int64_t> ranks) {
  const auto n = static_cast<int64_t>(ranks.size());
  return DeviceMesh::create(World::current(), c10::DeviceType::CPU, {{n}, std::move(ranks)});
}

/// The slices of ranks (0, 1; 2, 3) through this one: along rows, and along columns.
std::pair<MeshPtr, MeshPtr> slices(const World& world) {
  const MeshPtr rows[] = {mesh_of({0, 1}), mesh_of({2, 3})}, columns[] = {mesh_of({0, 2}), mesh_of({1, 3})};
  return {rows[world.rank() / 2], columns[world.rank() % 2]};
}

SpecPtr number_on(const MeshPtr& mesh, Placement placement = Placement::replicate()) {
  return Spec::intern(mesh, {}, {std::move(placement)}, {}, at::kDouble);
}

Shards pieces_on(const DeviceMesh& mesh, double value) {
  return mesh.is_member() ? Shards{at::scalar_tensor(value, at::kDouble)} : Shards{};
}

TEST(NumberMoveTest, SlicesCompareWhatTheyHave) {
  run_ranks(4, [](World& world) {
    const auto [row, column] = slices(world);
    EXPECT_EQ(move_number(number_on(row), pieces_on(*row, 0.5), number_on(column))[0].item<double>(), 0.5);
    const auto partial = number_on(row, Placement::partial(Reduce::kSum));
    EXPECT_EQ(move_number(partial, pieces_on(*row, 0.5), number_on(column))[0].item<double>(), 1.0);
    const std::string ranks = world.rank() % 2 == 0 ? "ranks 0 and 2" : "ranks 1 and 3";
    expect_error(ranks + " of that mesh have different values for it, 0 and 1",
                 error_of<c10::ValueError>([&, row = row, column = column] {
                   move_number(number_on(row), pieces_on(*row, static_cast<double>(world.rank() / 2)),
                               number_on(column));
                 }));
  });
}

TEST(NumberMoveTest, MeshesOfSomeRanksGiveItToTheOthers) {
  run_ranks(4, [](World&) {
    const std::vector<std::vector<int64_t>> all_ranks{{1, 3}, {3, 0}, {2}, {0, 1, 2, 3}};
    for (const auto& from_ranks : all_ranks)
      for (const auto& to_ranks : all_ranks) {
        const MeshPtr from = mesh_of(from_ranks), to = mesh_of(to_ranks);
        const CommTrace trace;
        const Shards pieces = move_number(number_on(from), pieces_on(*from, 2.5), number_on(to));
        ASSERT_EQ(pieces.size(), to->is_member() ? 1 : 0);
        for (const at::Tensor& piece : pieces) EXPECT_EQ(piece.item<double>(), 2.5);
        EXPECT_TRUE(trace.total_count() == 0 || !has_all_ranks_of(*from, *to));
      }
  });
}

TEST(MeshAgreementTest, RanksOfSlicesDoNotMeanTheSame) {
  run_ranks(4, [](World& world) {
    const auto [row, column] = slices(world);
    const MeshPtr all = mesh_of({0, 1, 2, 3}), some = mesh_of({0, 2});
    const MeshPtr pairs[][2] = {{row, column}, {row, all}, {all, column}, {some, row}};
    for (const auto& [from, to] : pairs)
      expect_error("the ranks disagree about the two meshes",
                   error_of<c10::ValueError>([from = from, to = to] { check_same_meshes(*from, *to); }));
    check_same_meshes(*some, *all);
    check_same_meshes(*all, *some);
    check_same_meshes(*some, *mesh_of({0, 1}));
    check_same_meshes(*row, *row);
  });
}

}  // namespace
}  // namespace shardwise::number_move_test
