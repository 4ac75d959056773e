// shardwise/dtensor.h: DTensor, a tensor that is known to be distributed, with Python's methods; and its factories.
//
//   auto mesh = sw::init_device_mesh("cpu", {4});
//   sw::DTensor table = sw::rand({10, 3}, mesh, {sw::Shard(0, {1, 4, 0, 5})}, torch::requires_grad());
//   at::Tensor sums = table.sum(1);                    // every operator of libtorch accepts it, and returns an at::Tensor ...
//   sw::DTensor rows(sums);                            // ... that is distributed, which this asserts
//   at::Tensor dense = rows.redistribute({sw::Replicate()}).to_local();        // or full_tensor()
//
// Without placements a tensor is replicated over the whole mesh.
#pragma once

#include "runtime/api/dtensor.h"
#include "runtime/api/random.h"
#include "shardwise/device_mesh.h"
#include "shardwise/placements.h"

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// An at::Tensor whose type says that it is distributed. It is one pointer, like an at::Tensor, and undefined by default.
class DTensor : public at::Tensor {
 public:
  DTensor() = default;
  /// Throws: c10::TypeError for a plain tensor: distribute_tensor() and from_local() make a distributed one from it.
  explicit DTensor(at::Tensor tensor);

  /// As shardwise::from_local(): this rank's piece, aliased. Differentiable.
  static DTensor from_local(const at::Tensor& local, const Mesh& mesh, Placements placements = {},
                            const FromLocalOptions& options = {});

  /// One placement per mesh dim. Pre, here and below: the tensor is defined.
  Placements placements() const { return spec_of(*this)->placements().vec(); }
  Mesh device_mesh() const { return spec_of(*this)->mesh(); }

  /// As shardwise::redistribute(). Collective over the mesh. Differentiable.
  DTensor redistribute(Placements placements, const RedistributeOptions& options = {}) const;
  DTensor redistribute(const Mesh& mesh, Placements placements, const RedistributeOptions& options = {}) const;
  /// As shardwise::full_tensor(): all values, plain. Collective over the mesh. Differentiable.
  at::Tensor full_tensor(std::optional<Placements> grad_placements = {}) const;
  /// As shardwise::to_local(): this rank's piece, plain and aliased. Sends nothing. Differentiable.
  at::Tensor to_local(std::optional<Placements> grad_placements = {}) const;
  /// As shardwise::to_pieces(): this rank's pieces, for layouts in which a rank has several.
  std::vector<at::Tensor> to_pieces() const;

  /// Undefined if there is no gradient. Throws: c10::TypeError if the program has set a plain tensor as the gradient.
  DTensor grad() const { return DTensor(at::Tensor::grad()); }
  const DTensor& requires_grad_(bool requires_grad = true) const;
};

/// DTensor::placements() and device_mesh() of an operator's result. Throws: c10::TypeError for a plain tensor.
inline Placements placements(const at::Tensor& tensor) { return spec_of(tensor)->placements().vec(); }
inline Mesh device_mesh(const at::Tensor& tensor) { return spec_of(tensor)->mesh(); }

/// "Float [4, 3] as [Shard(0)] on (2)", and this rank's part as torch prints it. Sends nothing.
std::ostream& operator<<(std::ostream& stream, const DTensor& tensor);

/// As distribute_tensor() on a MeshPtr. Collective over the mesh if `src_data_rank` is set.
DTensor distribute_tensor(const at::Tensor& tensor, const Mesh& mesh, Placements placements = {},
                          std::optional<int64_t> src_data_rank = 0);

// Factories: each rank fills its own part, and nothing is sent. `sizes` is the shape of the whole tensor. `options`: only dtype and requires_grad are
// used, as in torch::dtype(torch::kDouble).requires_grad(true). Throws: c10::ValueError for Partial placements (except in empty()) and for a device
// that is not the mesh's; c10::TypeError from rand and randn for a dtype that is not floating point.
DTensor zeros(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements = {},
              const at::TensorOptions& options = {});
DTensor ones(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements = {},
             const at::TensorOptions& options = {});
DTensor empty(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements = {},
              const at::TensorOptions& options = {});
/// The default dtype is that of `fill_value`.
DTensor full(c10::IntArrayRef sizes, const at::Scalar& fill_value, const Mesh& mesh, Placements placements = {},
             const at::TensorOptions& options = {});
/// Uniform in [0, 1). The tensor does not depend on the mesh and the placements, but on torch::manual_seed: all ranks must set the same seed and make
/// the same draws.
DTensor rand(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements = {},
             const at::TensorOptions& options = {});
/// Normal with mean 0 and deviation 1, otherwise as rand.
DTensor randn(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements = {},
              const at::TensorOptions& options = {});

// Overloads for a dtype, which would be ambiguous between an at::TensorOptions and the functions on a MeshPtr.
inline DTensor empty(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, at::ScalarType dtype) {
  return empty(sizes, mesh, std::move(placements), at::TensorOptions(dtype));
}
inline DTensor full(c10::IntArrayRef sizes, const at::Scalar& fill_value, const Mesh& mesh, Placements placements,
                    at::ScalarType dtype) {
  return full(sizes, fill_value, mesh, std::move(placements), at::TensorOptions(dtype));
}
inline DTensor rand(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, at::ScalarType dtype) {
  return rand(sizes, mesh, std::move(placements), at::TensorOptions(dtype));
}
inline DTensor randn(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, at::ScalarType dtype) {
  return randn(sizes, mesh, std::move(placements), at::TensorOptions(dtype));
}

}  // namespace shardwise
