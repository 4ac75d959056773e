// ops/spatial/pooling.cpp: pooling, unpooling and their derivatives: batch and channels may be sharded. Indices count
// within a plane.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"
#include "ops/support/plain_gradients.h"

#include <ATen/ops/max_pool1d_with_indices.h>

#include <string>

namespace shardwise {
namespace {

/// Fractional pooling takes random numbers [n, c, dims]; for unbatched input [1, c, dims].
void describe_fractional(size_t n, const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes, samples = call.operands[1].sizes;
  Axes shared;
  for (size_t dim = 0; dim + n < sizes.size(); ++dim) shared.push_back({signature.add_factor(sizes[dim])});
  Axes input = shared, random;
  add_whole_axes(sizes, sizes.size() - shared.size(), signature, input);
  if (samples.size() == 3 && shared.size() == 2) random = shared;
  if (samples.size() == 3 && shared.size() == 1) random = {Axis{}, shared[0]};
  add_whole_axes(samples, samples.size() - random.size(), signature, random);
  shared.resize(sizes.size());
  signature.set({input, random}, {shared, shared});
  keep_whole_if_empty(call, signature);
}

Rule fractional(const char* name, size_t n) {
  return Rule(name, [n](const OpCall& call, Signature& signature) { describe_fractional(n, call, signature); })
      .sampled();
}

/// torch's max_pool1d reads the tensor's memory directly where no gradient is needed.
at::Tensor max_pool1d(const at::Tensor& self, c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                      c10::IntArrayRef padding, c10::IntArrayRef dilation, bool ceil_mode) {
  return std::get<0>(at::max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode));
}

}  // namespace

void register_pooling(RuleTable& table) {
  const Rule flat = planes("planes of 2 dims", 2).sampled(), deep = planes("planes of 3 dims", 3).sampled();
  table.add({"aten::max_pool2d_with_indices", "aten::adaptive_max_pool2d", "aten::max_unpool2d"}, flat);
  table.add({"aten::max_pool3d_with_indices", "aten::adaptive_max_pool3d", "aten::max_unpool3d"}, deep);
  table.add({"aten::avg_pool2d", "aten::_adaptive_avg_pool2d"}, flat.linear());
  table.add({"aten::avg_pool3d", "aten::_adaptive_avg_pool3d"}, deep.linear());
  table.add(
      {"aten::max_pool2d_with_indices_backward", "aten::adaptive_max_pool2d_backward",
       "aten::fractional_max_pool2d_backward", "aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d_backward"},
      flat.linear_in_first());
  table.add(
      {"aten::max_pool3d_with_indices_backward", "aten::adaptive_max_pool3d_backward",
       "aten::fractional_max_pool3d_backward", "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool3d_backward"},
      deep.linear_in_first());
  table.add("aten::fractional_max_pool2d", fractional("fractional planes of 2 dims", 2));
  table.add("aten::fractional_max_pool3d", fractional("fractional planes of 3 dims", 3));
  for (const char* pool :
       {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
        "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"})
    lay_out_gradients(std::string(pool) + "_backward");
  add_composition("max_pool1d", &max_pool1d);
}

}  // namespace shardwise
