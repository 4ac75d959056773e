// ops/values.cpp: what leaves as a number or a truth value: item(), and questions about shapes.
#include "ops/families.h"
#include "ops/kernels.h"

namespace shardwise {
namespace {

bool is_same_size(const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); }

bool has_same_numel(const at::Tensor& a, const at::Tensor& b) { return a.numel() == b.numel(); }

}  // namespace

void register_values(RuleTable& table) {
  table.add("aten::_local_scalar_dense", Rule::gathered());
  aten_kernels().impl("is_same_size", &is_same_size);
  aten_kernels().impl("_has_same_storage_numel", &has_same_numel);
}

}  // namespace shardwise
