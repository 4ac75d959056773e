#include "runtime/tensor/unused_meshes.h"

#include "runtime/api/from_local.h"
#include "runtime/comm/given_groups.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace shardwise::unused_meshes_test {
namespace {

MeshPtr mesh_called(const std::string& name) {
  const GivenGroups absent(world_without_groups(0, 2));
  return DeviceMesh::create(World::current(), c10::kCPU, {{2}, {0, 1}}, {name});
}

at::Tensor rows_on(const MeshPtr& mesh, int64_t n) {
  return from_local(at::ones({n}), mesh, {Placement::shard(0)}, {.shape = Dims{2 * n}, .stride = Dims{1}});
}

TEST(UnusedMeshesTest, AMeshIsUsedWhileSomebodyBesideSpecsHasIt) {
  MeshPtr mesh = mesh_called("a");
  const at::Tensor x = rows_on(mesh, 3);
  const SpecPtr spec = maybe_dtensor(x)->spec(), on_meta = spec->on(c10::kMeta);
  EXPECT_FALSE(UnusedMeshes().has(spec));
  EXPECT_FALSE(UnusedMeshes().has(on_meta));
  mesh = nullptr;
  EXPECT_TRUE(UnusedMeshes().has(spec));
  EXPECT_TRUE(UnusedMeshes().has(on_meta));
}

TEST(UnusedMeshesTest, CachesLetGoOfThem) {
  const auto use = [](int i) {
    const MeshPtr mesh = mesh_called("mesh " + std::to_string(i));
    (rows_on(mesh, 3) + 1).mul_(2);
    return std::weak_ptr<const DeviceMesh>(mesh);
  };
  std::vector<std::weak_ptr<const DeviceMesh>> meshes;
  for (int i = 0; i < 10000; ++i) meshes.push_back(use(i));
  EXPECT_LE(std::ranges::count_if(meshes, [](const auto& mesh) { return !mesh.expired(); }), 2);
}

TEST(UnusedMeshesTest, SpecsOfNewShapesStayFew) {
  const MeshPtr mesh = mesh_called("shapes");
  for (int64_t i = 0; i < 200000; ++i) Spec::intern(mesh, {2 * i, 1}, {Placement::shard(0)}, {1, 1}, at::kFloat);
  for (int64_t i = 0; i < 20000; ++i) rows_on(mesh, i + 1) + 1;
  EXPECT_LE(living_specs().size(), 40000u);
}

}  // namespace
}  // namespace shardwise::unused_meshes_test
