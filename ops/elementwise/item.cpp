// ops/elementwise/item.cpp: operators that return a number or a bool: item(), and comparisons of values and shapes.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "ops/support/plain_self.h"
#include "runtime/api/to_local.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/group_backend.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <optional>

namespace shardwise {
namespace {

/// True if `own` is true on all ranks of the world. Collective over the world.
bool is_true_on_all(bool own, World& world) {
  const CommScope scope("aten::equal", CommScope::Cause::kProgram);
  const GroupPtr everyone = world.everyone();
  const at::Tensor answer = at::full({1}, own, at::TensorOptions(at::kByte).device(numbers_device(*everyone)));
  all_reduce(*everyone, answer, Reduce::kMin);
  return answer.item<bool>();
}

/// Ranks compare their pieces, after reducing a Partial, and then exchange one number.
bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  const BelowAutograd guard;
  const DeviceMesh& mesh = *spec_of(self)->mesh();
  const at::Tensor differs = at::ne(self, other).any();
  const bool tells_others = AnswersOutside::are_on() && mesh.size() < mesh.world()->size();
  const bool own = (tells_others && !mesh.is_member()) || !differs.item<bool>();
  const bool of_all = tells_others ? is_true_on_all(own, *mesh.world()) : own;
  return mesh.is_member() ? own : of_all;  // each slice of a mesh answers for itself
}

/// Nothing is sent. Views and aliases share their memory on all ranks, also where pieces are empty.
bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  const DTensorImpl *a = maybe_dtensor(self), *b = maybe_dtensor(other);
  if (!a || !b || a->spec() != b->spec()) return false;
  return a == b || (a->memory() == b->memory() && a->storage_offset() == b->storage_offset());
}

/// True if this rank's pieces are pinned. Nothing is sent.
bool is_pinned(const at::Tensor& self, std::optional<c10::Device> device) {
  const Shards& pieces = maybe_dtensor(self)->local_tensors();
  return !pieces.empty() &&
         std::ranges::all_of(pieces, [&](const at::Tensor& piece) { return piece.is_pinned(device); });
}

/// Returns torch's answer, or throws torch's error, for a dense tensor with the same number of dims and dtype. Nothing is sent.
void read_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::IValue& self = (*stack)[stack->size() - op.schema().arguments().size()];
  const at::Tensor tensor = self.toTensor();
  const DTensorImpl& impl = *maybe_dtensor(tensor);
  self = impl.holds_subclass() ? impl.local_tensors()[0]
                               : at::empty(Dims(tensor.dim()), at::device(tensor.device()).dtype(tensor.scalar_type()));
  op.callBoxed(stack);
}

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
  add_with_plain_self<&equal>("equal");
  aten_kernels().impl("_has_same_storage_numel", &has_same_numel);
  aten_kernels().impl("is_set_to", &is_set_to);
  for (const char* op : {"is_coalesced", "sparse_dim", "dense_dim", "_nnz", "_dimI", "_dimV", "qscheme", "q_scale",
                         "q_zero_point", "q_per_channel_axis"})
    aten_kernels().impl(op, torch::CppFunction::makeFromBoxedFunction<&read_dense>());
  aten_kernels().impl("is_pinned", torch::CppFunction(&is_pinned));  // a reader: no stale view is fetched for it
}

}  // namespace shardwise
