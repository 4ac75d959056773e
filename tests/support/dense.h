// tests/support/dense.h: distributed operators against the dense computation, over every kind of layout.
//
//   expect_same_as_dense("mm", [](const Tensors& t) { return at::mm(t[0], t[1]); }, {{5, 7}, {7, 2}});
//   expect_same_as_dense("exp", [](const Tensors& t) { return t[0].exp(); }, {{5, 3}}, {.is_exact = false});
//   EXPECT_EQ(to_string(rule("aten::mm")), "mk,kn->mn {k: sum} multilinear");
#pragma once

#include "placements/layout.h"
#include "runtime/comm/world.h"
#include "runtime/rules/rule.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace shardwise {

using Tensors = std::vector<at::Tensor>;

struct DenseOptions {
  /// Shapes of the meshes. Their ranks come in descending order, and one more rank, 0, is outside and calls along.
  std::vector<Dims> meshes = {{3}, {2, 2}, {2, 1, 2}};
  /// Inputs are integers in [low, high), for floating dtypes divided by 16: their products and sums are exact in float64.
  int64_t low = -128;
  int64_t high = 128;
  at::ScalarType dtype = at::kDouble;
  /// Bit for bit, else to 1e-12 (float32: 1e-6).
  bool is_exact = true;
  bool with_partial = true;
  bool with_enumerable = true;
  bool with_grad = true;
  /// Of all combinations of the operands' layouts, at most so many per mesh, evenly spread.
  int64_t max_combinations = 40;
};

/// Where the ranks of all comparisons compute.
struct DenseDevice {
  c10::DeviceType type = c10::DeviceType::CPU;
  /// Calls `body` with the thread made a rank that has such a device.
  std::function<void(World&, const std::function<void()>& body)> run_rank = [](World&, const auto& body) { body(); };
  /// What went wrong since the last call, other than in results; "" for nothing.
  std::function<std::string()> faults = [] { return std::string(); };
};

/// From now on, in this process: what tests/accelerator/ calls ahead of all tests.
void set_dense_device(DenseDevice device);

/// Compares `compute` on distributed inputs of these global sizes with the same on plain ones: values, shapes and dtypes of
/// the outputs, and every input's gradient for fixed random gradients of the outputs. Layouts, per operand and mesh dim:
/// Replicate, torch.chunk's split of each dim (uneven, empty and nested ones as the sizes have it), blocks of two, strided Shards of two
/// parts, explicit sizes with an empty piece, Partial(sum) of pieces that are all non-zero, and on 1-D meshes several boxes per rank. `compute` must not write to
/// its inputs. The failures name the layouts.
void expect_same_as_dense(const std::string& name, const std::function<Tensors(const Tensors&)>& compute,
                          const std::vector<Dims>& sizes, const DenseOptions& options = {});

/// The same for one tensor as the result.
template <class Compute>
  requires std::is_same_v<std::invoke_result_t<Compute, const Tensors&>, at::Tensor>
void expect_same_as_dense(const std::string& name, const Compute& compute, const std::vector<Dims>& sizes,
                          const DenseOptions& options = {}) {
  const std::function<Tensors(const Tensors&)> listed = [&](const Tensors& inputs) { return Tensors{compute(inputs)}; };
  expect_same_as_dense(name, listed, sizes, options);
}

/// The bytes that one call receives, the most over the ranks: 0 says that it ran where its inputs lay.
/// `layouts`: the placements of each input on a mesh of `mesh` ranks.
int64_t bytes_received(const std::function<Tensors(const Tensors&)>& compute, const std::vector<Dims>& sizes,
                       const Dims& mesh, const std::vector<std::vector<Placement>>& layouts);

/// Throws: c10::ValueError where `op` has none.
const Rule& rule(const std::string& op);

}  // namespace shardwise
