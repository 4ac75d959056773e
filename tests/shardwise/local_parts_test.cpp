// Distributed tensors of parts of any extents, against the tensor that the parts were taken from.
#include "shardwise/local_parts.h"

#include "tests/support/either_world.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace sw = shardwise;

namespace shardwise::local_parts_test {
namespace {

using Rows = std::vector<int64_t>;

/// This rank's rows of `dense`, dealt as `n_rows` say.
at::Tensor part_of(const at::Tensor& dense, const Rows& n_rows, int64_t place) {
  return dense.split_with_sizes(n_rows)[place].clone();
}

TEST(LocalPartsTest, ABatchOfAnyRowsPerRank) {
  for (const Rows& n_rows : {Rows{3, 3, 3}, Rows{4, 3, 3}, Rows{0, 5, 5}, Rows{10, 0, 0}, Rows{0, 0, 0}})
    run_ranks(3, [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {3});
      const int64_t total = n_rows[0] + n_rows[1] + n_rows[2];
      const at::Tensor dense = at::arange(total * 2, at::kDouble).view({total, 2});
      const at::Tensor part = part_of(dense, n_rows, world.rank()).set_requires_grad(true);
      const sw::DTensor batch = sw::from_local_batch(part, mesh);
      EXPECT_TRUE(at::equal(batch.full_tensor(), dense));
      EXPECT_EQ(batch.to_local().data_ptr(), part.data_ptr());
      (batch * batch).sum().backward();
      EXPECT_TRUE(at::equal(part.grad(), 2 * part));
    });
}

TEST(LocalPartsTest, ASliceOfAMeshMakesABatchOnTheWhole) {
  run_ranks(6, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3, 2}, {"dp", "tp"});
    const at::Tensor dense = at::arange(7);
    const sw::DTensor batch = sw::from_local_batch(part_of(dense, {1, 4, 2}, world.rank() / 2), mesh["dp"]);
    EXPECT_EQ(batch.device_mesh(), mesh);
    EXPECT_EQ(to_string(batch.placements()), "[Shard(0, sizes=[1, 4, 2]), Replicate()]");
    EXPECT_TRUE(at::equal(batch.full_tensor(), dense));
    EXPECT_EQ(sw::dims_in_root(mesh["tp"]), (Rows{1}));
  });
}

TEST(LocalPartsTest, DimsNestAndSeveralTensorsShareTheMessage) {
  run_ranks(4, [](World& world) {
    const MeshPtr mesh = sw::init_device_mesh("cpu", {2, 2});
    const at::Tensor nested = at::arange(9), grid = at::arange(20).view({4, 5});
    const at::Tensor own_nested = part_of(nested, {4, 0, 3, 2}, world.rank());
    const at::Tensor own_grid =
        grid.split_with_sizes({1, 3})[world.rank() / 2].split_with_sizes({5, 0}, 1)[world.rank() % 2].clone();
    const auto tensors = sw::from_local_parts({own_nested, own_grid}, mesh,
                                              {{sw::Shard(0), sw::Shard(-1)}, {sw::Shard(0), sw::Shard(1)}});
    EXPECT_TRUE(at::equal(sw::full_tensor(tensors[0]), nested));
    EXPECT_TRUE(at::equal(sw::full_tensor(tensors[1]), grid));
  });
}

TEST(LocalPartsTest, PartsThatDoNotFitAreAnErrorOnAllRanks) {
  run_ranks(2, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const bool is_first = world.rank() == 0;
    const auto error = [&](const at::Tensor& local) {
      return error_of<c10::ValueError>([&] { sw::from_local_batch(local, mesh); });
    };
    expect_error("rank 0 gives Long [2, 3], rank 1 gives Long [2, 4]",
                 error(at::zeros({2, is_first ? 3 : 4}, at::kLong)));
    expect_error("rank 1 gives Float [2]", error(is_first ? at::zeros({2, 2}) : at::zeros({2})));
    expect_error("rank 1 gives Int [2]", error(at::zeros({2}, is_first ? at::kLong : at::kInt)));
    const std::vector<at::Tensor> some(is_first ? 2 : 1, at::zeros({2}));
    const std::vector<Placements> placements(some.size(), {sw::Shard(0)});
    expect_error("the ranks give different numbers of tensors",
                 error_of<c10::ValueError>([&] { sw::from_local_parts(some, mesh, placements); }));
    expect_error("and 0 lists", error_of<c10::ValueError>([&] { sw::from_local_parts({at::ones(1)}, mesh, {}); }));
    const at::Tensor made = sw::ones({2}, mesh), plain = at::ones({2});
    expect_error("the part of rank 1 is a DTensor already",
                 error_of<c10::TypeError>([&] { sw::from_local_batch(is_first ? plain : made, mesh); }));
    expect_error("the part of rank 0 is undefined", error(is_first ? at::Tensor() : plain));
    for (const Placements& wrong : {Placements{sw::Shard(0), sw::Shard(0)}, Placements{}})
      expect_error("the mesh (2) has 1 dims. Give one per mesh dim",
                   error_of<c10::ValueError>([&] { sw::from_local_parts({plain}, mesh, {wrong}); }));
    for (const int64_t dim : {-2, 1})
      expect_error("does not exist: the parts have 1 dims. Use a dim in [-1, 1)",
                   error_of<c10::IndexError>([&] { sw::from_local_parts({plain}, mesh, {{sw::Shard(dim)}}); }));
  });
}

TEST(LocalPartsTest, ARankOutsideCallsAlong) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const sw::DTensor batch = sw::from_local_batch(at::full({2}, world.rank()), mesh);
    const at::Tensor all = batch.full_tensor();
    EXPECT_TRUE(!mesh->is_member() || at::equal(all, at::tensor({0, 0, 1, 1})));
  });
}

}  // namespace
}  // namespace shardwise::local_parts_test
