#include "ops/support/agreed_range.h"

#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"

#include <ATen/ops/tensor.h>

namespace shardwise {

std::pair<int64_t, int64_t> agreed_range(const Spec& spec, std::pair<int64_t, int64_t> own) {
  if (spec.layout().is_replicated()) return own;
  const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram);  // two numbers for every layout
  const c10::Device device = spec.mesh()->is_meta() ? c10::Device(at::kCPU) : spec.mesh()->device();
  at::Tensor bounds = at::tensor({~own.first, own.second}, at::kLong).to(device);  // ~: the minimum as a maximum
  for (const int64_t m : mesh_dims_that_differ(spec.placements()))
    all_reduce(*spec.mesh()->group(m), bounds, Reduce::kMax);
  bounds = bounds.cpu();
  return {~bounds[0].item<int64_t>(), bounds[1].item<int64_t>()};
}

}  // namespace shardwise
