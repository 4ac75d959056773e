#include "runtime/tensor/device_mesh.h"

#include "runtime/tensor/spec.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace shardwise::device_mesh_test {
namespace {

MeshPtr named(Dims shape, std::vector<int64_t> ranks, std::vector<std::string> names) {
  return DeviceMesh::create(World::current(), c10::kCPU, {std::move(shape), std::move(ranks)}, std::move(names));
}

TEST(DeviceMeshTest, EqualMeshesAreOneObjectPerRank) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    EXPECT_EQ(mesh, make_mesh({3}));
    EXPECT_NE(mesh, make_mesh({3}, {2, 0, 1}));
    EXPECT_NE(mesh, named({3}, {0, 1, 2}, {"dp"}));
  });
}

TEST(DeviceMeshTest, GroupsFollowTheGridInAnyRankOrder) {
  run_ranks(5, [](World& world) {
    const auto mesh = named({2, 2}, {3, 0, 4, 1}, {"dp", "tp"});
    if (world.rank() == 2) {
      EXPECT_FALSE(mesh->is_member());
      EXPECT_EQ(mesh->group(), nullptr);
      return;
    }
    EXPECT_EQ(mesh->group()->ranks, (std::vector<int64_t>{0, 1, 3, 4}));
    if (world.rank() == 4) {
      EXPECT_EQ(*mesh->coord(), (Dims{1, 0}));
      EXPECT_EQ(mesh->group(0)->ranks, (std::vector<int64_t>{3, 4}));
      EXPECT_EQ(mesh->group(1)->ranks, (std::vector<int64_t>{1, 4}));
    }
  });
}

TEST(DeviceMeshTest, SubmeshGoesThroughThisRank) {
  run_ranks(4, [](World& world) {
    const auto mesh = named({2, 2}, {0, 1, 2, 3}, {"dp", "tp"});
    const auto tp = mesh->submesh({"tp"});
    EXPECT_EQ(tp->grid().ranks, world.rank() < 2 ? (std::vector<int64_t>{0, 1}) : (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(to_string(*tp), world.rank() < 2 ? "(tp=2)" : "(tp=2: ranks [2, 3])");
    EXPECT_THROW(mesh->submesh({"pp"}), c10::ValueError);
  });
}

TEST(DeviceMeshTest, OnMetaIsOneMeshOfTheSameRanksThatSendsNothing) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}), meta = mesh->on_meta();
    EXPECT_TRUE(meta->is_meta() && meta->device().is_meta());
    EXPECT_EQ(meta, mesh->on(c10::kMeta));
    EXPECT_EQ(meta, meta->on_meta());
    EXPECT_EQ(mesh, meta->with_memory());
    EXPECT_EQ(mesh, meta->on(c10::kCPU));
    EXPECT_EQ(mesh, mesh->with_memory());
    EXPECT_EQ(mesh->group()->ranks, meta->group()->ranks);
    EXPECT_TRUE(mesh->group()->sends && !meta->group()->sends && !meta->group(0)->sends);
    EXPECT_EQ(mesh->process_group(0), meta->process_group(0));
    EXPECT_EQ(to_string(*mesh), to_string(*meta));
  });
}

TEST(DeviceMeshTest, WrongRanksAndNamesAreRefused) {
  run_ranks(2, [](World&) {
    EXPECT_THROW(make_mesh({2}, {0, 0}), c10::ValueError);
    EXPECT_THROW(make_mesh({2}, {0, 5}), c10::ValueError);
    EXPECT_THROW(make_mesh({1}, {-1}), c10::ValueError);
    EXPECT_THROW(named({2}, {0, 1}, {"a", "b"}), c10::ValueError);
    EXPECT_THROW(named({1, 2}, {0, 1}, {"a", "a"}), c10::ValueError);
  });
}

TEST(SpecTest, EqualSpecsAreOneObjectAndGoWithTheirLastUser) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto spec = Spec::intern(mesh, {4, 3}, {Placement::shard(0)}, {3, 1}, at::kFloat);
    EXPECT_EQ(spec, Spec::intern(mesh, {4, 3}, {Placement::shard(0, {2, 2})}, {3, 1}, at::kFloat));
    EXPECT_NE(spec, Spec::intern(mesh, {4, 3}, {Placement::shard(0)}, {3, 1}, at::kDouble));
    EXPECT_NE(spec, Spec::intern(mesh, {4, 3}, {Placement::shard(0)}, {1, 4}, at::kFloat));
    c10::weak_intrusive_ptr<Spec> weak(Spec::intern(mesh, {7}, {Placement::shard(0)}, {1}, at::kFloat));
    EXPECT_TRUE(weak.expired());
  });
}

TEST(SpecTest, PieceStridesFollowTheTensors) {
  EXPECT_EQ(dense_strides({2, 5}, {1, 8}), (Dims{1, 2}));
  EXPECT_EQ(dense_strides({2, 5, 3}, {15, 3, 1}), (Dims{15, 3, 1}));
  EXPECT_EQ(row_major_strides({2, 0, 3}), (Dims{3, 3, 1}));
}

}  // namespace
}  // namespace shardwise::device_mesh_test
