#include "ops/support/by_rule.h"

#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/rules/rule.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {

ByRule::ByRule(const char* name, const char* overload)
    : info_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)) {
  info_.rule = RuleTable::global().find(info_.name);
}

void ByRule::run(torch::jit::Stack& stack) const { dispatch(info_, &stack); }

c10::SmallVector<SpecPtr, 8> ByRule::layouts_of(torch::jit::Stack stack) const {
  return planned_layouts(info_, std::move(stack));
}

bool is_sharded_along(const at::Tensor& tensor, c10::IntArrayRef dims) {
  if (!is_dtensor(tensor)) return false;
  const Spec& spec = *spec_of(tensor);
  if (spec.numel() == 0) return false;
  for (int64_t m = 0; m < spec.mesh()->ndim(); ++m) {
    const int64_t split = spec.mesh()->size(m) > 1 ? spec.placements()[m].split_dim() : -1;
    const auto is_split = [&](int64_t dim) { return c10::maybe_wrap_dim(dim, tensor.dim()) == split; };
    if (split >= 0 && (dims.empty() || std::ranges::any_of(dims, is_split))) return true;
  }
  return false;
}

bool is_sharded_along(const at::Tensor& tensor, int64_t dim) { return is_sharded_along(tensor, c10::IntArrayRef(dim)); }

Dims integers_in(const at::Tensor& tensor) {
  check_not_traced("numbers that decide sizes");
  const at::Tensor all = is_dtensor(tensor) ? full_tensor(tensor.detach()) : tensor;
  const at::Tensor integers = all.to(at::kCPU, at::kLong).contiguous();
  return {integers.const_data_ptr<int64_t>(), integers.const_data_ptr<int64_t>() + integers.numel()};
}

at::Tensor reduced(const at::Tensor& tensor) {
  const SpecPtr& spec = spec_of(tensor);
  return spec->layout().has_terms() ? redistribute(tensor, without_partial(spec->placements())) : tensor;
}

}  // namespace shardwise
