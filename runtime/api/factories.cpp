#include "runtime/api/factories.h"

#include "placements/placement_list.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/empty.h>

namespace shardwise {

at::Tensor full(c10::IntArrayRef sizes, const at::Scalar& value, const MeshPtr& mesh, Placements placements,
                at::ScalarType dtype) {
  SW_CHECK_VALUE(mesh_dims_with_terms(placements).empty(), "[full] cannot fill a tensor as {}: use Shard or Replicate.",
                 to_string(placements));
  return empty(sizes, mesh, std::move(placements), dtype).fill_(value);
}

at::Tensor empty(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  auto spec = Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
  const auto options = at::TensorOptions().dtype(dtype).device(mesh->device());
  BelowAutograd guard;
  Shards shards;
  for (const Box& box : spec->boxes()) shards.push_back(at::empty(box.sizes, options));
  return wrap(std::move(spec), std::move(shards));
}

}  // namespace shardwise
