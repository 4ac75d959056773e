#include "runtime/api/factories.h"

#include "placements/placement_list.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace shardwise {
namespace {

template <typename Make>
at::Tensor make(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype,
                const Make& make_piece) {
  auto spec = Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
  const auto options = at::TensorOptions().dtype(dtype).device(mesh->device());
  BelowAutograd guard;
  Shards shards;
  for (const Box& box : spec->boxes()) shards.push_back(make_piece(box, options));
  return wrap(std::move(spec), std::move(shards));
}

}  // namespace

at::Tensor full(c10::IntArrayRef sizes, const at::Scalar& value, const MeshPtr& mesh, Placements placements,
                at::ScalarType dtype) {
  SW_CHECK_VALUE(mesh_dims_with_terms(placements).empty(), "[full] cannot fill a tensor as {}: use Shard or Replicate.",
                 to_string(placements));
  return make(sizes, mesh, std::move(placements), dtype,
              [&](const Box& box, const at::TensorOptions& options) { return at::full(box.sizes, value, options); });
}

at::Tensor empty(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  return make(sizes, mesh, std::move(placements), dtype,
              [](const Box& box, const at::TensorOptions& options) { return at::empty(box.sizes, options); });
}

}  // namespace shardwise
