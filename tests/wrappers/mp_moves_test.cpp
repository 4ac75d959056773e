// The moves of model-parallel layers: values, gradients, messages, and what they refuse.
#include "wrappers/mp_moves.h"

#include "runtime/comm/events.h"
#include "tests/support/either_world.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::mp_moves_test {
namespace {

/// A value of its own on each rank.
at::Tensor own_value(const World& world, c10::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes).add(100. * world.rank()).requires_grad_();
}

TEST(MpMovesTest, CopyReducesGradientsOnly) {
  run_ranks(3, [](World& world) {
    const at::Tensor x = at::arange(6, at::kDouble).view({2, 3}).requires_grad_();
    CommTrace forward;
    const at::Tensor y = mp_copy(x);
    EXPECT_TRUE(y.equal(x) && !is_dtensor(y));
    EXPECT_EQ(forward.total_count(), 0);
    const auto grad = torch::autograd::grad({y}, {x}, {at::full_like(x, world.rank() + 1.)})[0];
    EXPECT_TRUE(grad.equal(at::full_like(x, 6)));
    EXPECT_EQ(forward.counts(), (std::map<std::string, int64_t>{{"all_reduce", 1}}));
    for (const auto& [reduce, expected] : {std::pair(Reduce::kAvg, 2.), {Reduce::kMax, 3.}, {Reduce::kMin, 1.}}) {
      const at::Tensor of_op =
          torch::autograd::grad({mp_copy(x, {}, reduce)}, {x}, {at::full_like(x, world.rank() + 1.)})[0];
      EXPECT_TRUE(of_op.equal(at::full_like(x, expected))) << to_string(reduce);
    }
  });
}

TEST(MpMovesTest, ReduceReducesValuesOnly) {
  run_ranks(3, [](World& world) {
    const at::Tensor x = own_value(world, {2, 3});
    CommTrace trace;
    const at::Tensor y = mp_reduce(x);
    EXPECT_TRUE(y.equal(at::arange(6, at::kDouble).view({2, 3}) * 3 + 300));
    EXPECT_EQ(trace.counts(), (std::map<std::string, int64_t>{{"all_reduce", 1}}));
    const at::Tensor grad = torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0];
    EXPECT_TRUE(grad.equal(at::ones_like(x))) << "W times too large where each rank replays the loss";
    EXPECT_EQ(trace.total_count(), 1);
    EXPECT_TRUE(mp_reduce(x, {}, Reduce::kMax).equal(at::arange(6, at::kDouble).view({2, 3}) + 200));
    EXPECT_TRUE(mp_reduce(x, {}, Reduce::kAvg).equal(at::arange(6, at::kDouble).view({2, 3}) + 100));
  });
}

TEST(MpMovesTest, ScatterAndGatherAreEachOthersBackward) {
  run_ranks(3, [](World& world) {
    for (const Dims& sizes : {Dims{7, 2}, {2, 7}, {2, 2}, {0, 3}, {4, 5, 6}})
      for (int64_t dim = -1; dim < static_cast<int64_t>(sizes.size()); ++dim) {
        const at::Tensor x = at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes).requires_grad_();
        const Dims extents = chunk_sizes(x.size(dim), 3);
        const at::Tensor part = mp_scatter(x, dim);
        const auto own = [&](const at::Tensor& whole) { return whole.split_with_sizes(extents, dim)[world.rank()]; };
        EXPECT_TRUE(part.equal(own(x)));
        const at::Tensor weights = at::rand(sizes, at::kDouble).mul_(0).add_(x.detach() * 2 + 1);
        EXPECT_TRUE(torch::autograd::grad({part}, {x}, {own(weights)})[0].equal(weights));

        const at::Tensor given = part.detach().clone().requires_grad_();
        const at::Tensor all = mp_gather(given, dim);
        EXPECT_TRUE(all.equal(x));
        EXPECT_TRUE(torch::autograd::grad({all}, {given}, {weights})[0].equal(own(weights)));
      }
  });
}

TEST(MpMovesTest, GatherTakesPartsOfAnyExtent) {
  run_ranks(4, [](World& world) {
    const std::vector<int64_t> extents{3, 0, 1, 4};
    for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 1, 2, 3}, {2, 0, 3, 1}}) {
      const MeshPtr mesh = make_mesh({4}, ranks);
      const int64_t place = (*mesh->coord())[0];
      const at::Tensor dense = at::arange(16, at::kDouble).view({2, 8});
      const at::Tensor part = dense.split_with_sizes(extents, 1)[place].contiguous().requires_grad_();
      const at::Tensor all = mp_gather(part, 1, {mesh});
      EXPECT_TRUE(all.equal(dense));
      EXPECT_TRUE(torch::autograd::grad({all.square().sum()}, {part})[0].equal(2 * part));
    }
    EXPECT_TRUE(mp_scatter(at::arange(9), 0, {make_mesh({4}, {3, 2, 1, 0})})
                    .equal(at::arange(9).split_with_sizes({3, 3, 3, 0})[3 - world.rank()]));
  });
}

TEST(MpMovesTest, OneDimOfAMeshMovesAmongItsRanksAlone) {
  run_ranks(6, [](World& world) {
    const MeshPtr mesh = make_mesh({2, 3}, {5, 4, 3, 2, 1, 0});
    const at::Tensor own = at::full({2}, world.rank(), at::kDouble);
    const int64_t row = (*mesh->coord())[0];
    EXPECT_TRUE(mp_reduce(own, {mesh, 1}).equal(at::full({2}, row == 0 ? 12. : 3., at::kDouble)));
    EXPECT_TRUE(mp_reduce(own, {mesh, -2}).equal(at::full({2}, 2. * (world.rank() % 3) + 3, at::kDouble)));
    EXPECT_TRUE(mp_gather(own, 0, {mesh, 0})
                    .equal(at::cat({at::full({2}, world.rank() % 3 + 3, at::kDouble),
                                    at::full({2}, world.rank() % 3, at::kDouble)})));
  });
}

TEST(MpMovesTest, DTensorsStayDTensors) {
  run_ranks(4, [](World&) {
    const MeshPtr mesh = make_mesh({2, 2});
    const Placement copy = Placement::replicate(), shard = Placement::shard(0), sum = Placement::partial();
    const at::Tensor dense = at::arange(15, at::kDouble).view({5, 3});
    const auto placed = [&](const at::Tensor& tensor) { return spec_of(tensor)->placements().vec(); };

    const at::Tensor x = lay_out(dense, mesh, {shard, copy}).requires_grad_();
    EXPECT_EQ(placed(mp_scatter(x, 1, {mesh, 1})), (Placements{shard, Placement::shard(1)}));
    EXPECT_EQ(placed(mp_gather(mp_scatter(x, 0, {nullptr, 1}), 0, {nullptr, 1})), (Placements{shard, copy}));
    EXPECT_TRUE(full_tensor(mp_scatter(x, 0, {nullptr, 1})).equal(dense));

    const at::Tensor terms = redistribute(lay_out(dense, mesh, {shard, sum}), Placements{shard, sum});
    EXPECT_EQ(placed(mp_reduce(terms, {mesh, 1})), (Placements{shard, copy}));
    EXPECT_TRUE(full_tensor(mp_reduce(terms, {mesh, 1})).equal(dense));

    // The rows of a weight are sharded, so the input's gradient is a sum over their ranks, which mp_copy reduces.
    const at::Tensor rows = lay_out(at::arange(12, at::kDouble).view({4, 3}), mesh, {copy, shard});
    const at::Tensor y = at::linear(mp_copy(x, {mesh, 1}), rows);
    const at::Tensor grad = torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0];
    EXPECT_EQ(placed(grad), (Placements{shard, copy}));
    EXPECT_TRUE(full_tensor(grad).equal(at::ones({5, 4}, at::kDouble).matmul(full_tensor(rows))));
  });
}

TEST(MpMovesTest, SecondDerivatives) {
  run_ranks(3, [](World&) {
    const at::Tensor x = at::arange(6, at::kDouble).view({2, 3}).requires_grad_();
    const auto through = [](const at::Tensor& value) { return mp_gather(mp_scatter(value, 1).pow(3), 1); };
    const auto first = torch::autograd::grad({through(x).sum()}, {x}, {}, true, true)[0];
    EXPECT_TRUE(torch::autograd::grad({first.sum()}, {x})[0].allclose(6 * x));
  });
}

TEST(MpMovesTest, RanksOutsideTheMeshHoldNothing) {
  run_ranks(3, [](World& world) {
    const MeshPtr mesh = make_mesh({2}, {2, 0});
    const at::Tensor x = at::arange(4, at::kDouble);
    for (const at::Tensor& moved : {mp_copy(x, {mesh}), mp_reduce(x, {mesh}), mp_gather(x, 0, {mesh})})
      EXPECT_EQ(moved.numel() == 0, world.rank() == 1);
  });
}

TEST(MpMovesTest, Refusals) {
  run_ranks(3, [](World& world) {
    const MeshPtr mesh = make_mesh({3}), pair = make_mesh({2});
    const at::Tensor x = at::ones({2, 3}), rows = lay_out(x, mesh, {Placement::shard(0)});
    CommTrace trace;
    expect_error("[mp_copy] mesh dim 1 does not exist", error_of<c10::IndexError>([&] { mp_copy(x, {mesh, 1}); }));
    expect_error("[mp_scatter] dim 2 does not exist: the tensor is of shape [2, 3]",
                 error_of<c10::IndexError>([&] { mp_scatter(x, 2, {mesh}); }));
    expect_error("[mp_gather] dim 0 does not exist", error_of<c10::IndexError>([&] { mp_gather(at::ones({}), 0); }));
    expect_error("[mp_copy] on mesh dim 0 the tensor is Shard(0), but must be Replicate()",
                 error_of<c10::ValueError>([&] { mp_copy(rows); }));
    expect_error("[mp_gather] on mesh dim 0 the tensor is Shard(0), but must be Shard(1)",
                 error_of<c10::ValueError>([&] { mp_gather(rows, 1); }));
    expect_error("but must be Partial(sum)", error_of<c10::ValueError>([&] { mp_reduce(rows); }));
    expect_error("but must be Replicate() or Partial()", error_of<c10::ValueError>([&] { mp_scatter(rows, 0); }));
    expect_error("[mp_gather] the DTensor lives on the mesh (3), not on (2)",
                 error_of<c10::ValueError>([&] { mp_gather(rows, 0, {pair}); }));
    expect_error("reduce_op \"max\" cannot be set for a DTensor", error_of<c10::ValueError>([&] {
                   mp_copy(lay_out(x, mesh, {Placement::replicate()}), {}, Reduce::kMax);
                 }));
    EXPECT_EQ(trace.total_count(), 0);

    // Alike on all ranks, whoever differs.
    const at::Tensor odd = world.rank() == 1 ? at::ones({2, 4}) : x;
    expect_error("[mp_gather] rank 0 has a part Float [2, 3] along dim 0, but rank 1 has a part Float [2, 4]",
                 error_of<c10::ValueError>([&] { mp_gather(odd, 0, {mesh}); }));
    expect_error("but rank 2 has a part Double [2, 3]",
                 error_of<c10::ValueError>([&] { mp_gather(world.rank() == 2 ? x.to(at::kDouble) : x, 0, {mesh}); }));
    expect_error("but rank 1 has a part Float [2]",
                 error_of<c10::ValueError>([&] { mp_gather(world.rank() == 1 ? at::ones({2}) : x, -1, {mesh}); }));
  });
}

}  // namespace
}  // namespace shardwise::mp_moves_test
