// The memory of gradients on their way back through from_local and redistribute.
#include "runtime/api/dtensor.h"

#include "runtime/api/from_local.h"
#include "runtime/api/to_local.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <functional>

namespace shardwise::gradients_test {
namespace {

struct Backward {
  at::Tensor grad;  // of the local tensor
  at::Tensor term;  // this rank's term of it
};

/// The backward of a product whose operand is whole and whose weight is sharded: the operand's gradient is Partial. `at_gradient` gets it.
Backward backward_of_product(int64_t rank, const std::function<void(const at::Tensor&)>& at_gradient) {
  const auto mesh = make_mesh({2});
  const at::Tensor local = at::ones({3, 4}).requires_grad_();
  const at::Tensor weight = lay_out(at::arange(24, at::kFloat).view({4, 6}), mesh, {Placement::shard(1)});
  const at::Tensor x = from_local(local, mesh, {Placement::replicate()});
  x.register_hook([&](const at::Tensor& grad) { at_gradient(grad); });
  at::linear(x, weight.t()).backward(lay_out(at::ones({3, 6}), mesh, {Placement::shard(1)}));
  const at::Tensor sums = at::arange(24, at::kFloat).view({4, 2, 3}).sum(-1).select(1, rank);
  return {local.grad(), sums.expand({3, 4})};
}

const at::Tensor kWhole = at::arange(24, at::kFloat).view({4, 6}).sum(1).expand({3, 4});

TEST(GradientsTest, AGradientThatNobodyHoldsIsReducedInItsMemory) {
  run_ranks(2, [](World& world) {
    const void* memory = nullptr;
    const auto [grad, term] = backward_of_product(world.rank(), [&](const at::Tensor& partial) {
      memory = maybe_dtensor(partial)->shards()[0].const_data_ptr();
    });
    EXPECT_TRUE(at::equal(grad, kWhole)) << grad;
    EXPECT_EQ(grad.const_data_ptr(), memory);
  });
}

TEST(GradientsTest, AHeldGradientKeepsItsValues) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> holders{
      [](const at::Tensor& partial) { return partial; },
      [](const at::Tensor& partial) { return partial.detach(); },
      [](const at::Tensor& partial) { return to_local(partial); },
      [](const at::Tensor& partial) { return to_local(partial).view(-1); },
  };
  for (const auto& hold : holders)
    run_ranks(2, [&](World& world) {
      at::Tensor kept;
      const auto [grad, term] =
          backward_of_product(world.rank(), [&](const at::Tensor& partial) { kept = hold(partial); });
      const at::Tensor piece = is_dtensor(kept) ? to_local(kept) : kept;
      EXPECT_TRUE(at::equal(grad, kWhole)) << grad;
      EXPECT_TRUE(at::equal(piece.view({3, 4}), term)) << piece;
    });
}

TEST(GradientsTest, AGradientInItsLayoutPassesAMoveAsItIs) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({3, 4}), mesh, {Placement::partial()}).requires_grad_();
    const at::Tensor moved = redistribute(x, {Placement::replicate()});
    const at::Tensor grad = lay_out(at::ones({3, 4}), mesh, {Placement::replicate()});
    EXPECT_TRUE(torch::autograd::grad({moved}, {x}, {grad})[0].is_same(grad));
  });
}

/// A gradient in memory that torch did not allocate, such as NumPy's.
struct WithMemory : torch::autograd::Function<WithMemory> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, float* memory) {
    ctx->saved_data["memory"] = reinterpret_cast<int64_t>(memory);
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    auto* memory = reinterpret_cast<float*>(ctx->saved_data.at("memory").toInt());
    return {from_local(at::from_blob(memory, {2}), spec_of(grads[0])->mesh(), {Placement::partial()}), {}};
  }
};

TEST(GradientsTest, MemoryThatTorchDidNotAllocateKeepsItsValues) {
  run_ranks(2, [](World&) {
    std::array<float, 2> memory{1, 2};
    const at::Tensor local = at::ones({2}).requires_grad_();
    const at::Tensor x = from_local(local, make_mesh({2}), {Placement::replicate()});
    WithMemory::apply(x, memory.data()).sum().backward();
    EXPECT_TRUE(at::equal(local.grad(), at::tensor({2.F, 4.F}))) << local.grad();
    EXPECT_EQ(memory, (std::array<float, 2>{1, 2}));
  });
}

}  // namespace
}  // namespace shardwise::gradients_test
