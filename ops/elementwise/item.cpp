// ops/elementwise/item.cpp: operators that return a number or a bool: item(), and comparisons of shapes.
#include "ops/families.h"
#include "ops/support/host_integers.h"
#include "ops/support/kernels.h"
#include "ops/support/torch_composition.h"

#include <ATen/ops/tensor_split.h>

namespace shardwise {
namespace {

bool has_same_numel(const at::Tensor& a, const at::Tensor& b) { return a.numel() == b.numel(); }

// torch reads these numbers from memory to compose the operator, so every rank needs all of them.

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices_or_sections, int64_t dim) {
  const Dims numbers = integers_in(indices_or_sections);
  return indices_or_sections.dim() == 0 ? at::tensor_split(self, numbers[0], dim)
                                        : at::tensor_split(self, numbers, dim);
}

}  // namespace

void register_item(RuleTable& table) {
  table.add("aten::_local_scalar_dense", Rule::gathered());
  add_composition("tensor_split.tensor_indices_or_sections", &tensor_split);
  add_torch_compositions({"is_same_size"});
  aten_kernels().impl("_has_same_storage_numel", &has_same_numel);
}

}  // namespace shardwise
