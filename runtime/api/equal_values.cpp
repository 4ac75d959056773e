#include "runtime/api/equal_values.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/below_autograd.h"

namespace shardwise {

bool has_values(const at::Tensor& plain) {
  return plain.layout() == at::kStrided && plain.has_storage() && !plain.is_meta() &&
         !plain.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
}

void add_form(Digest& digest, const at::Tensor& plain) {
  digest.add(static_cast<int64_t>(plain.scalar_type()));
  digest.add(plain.dim());
  for (const int64_t size : plain.sizes()) digest.add(size);
}

void add_values(Digest& digest, const at::Tensor& plain) {
  if (!has_values(plain)) return;
  const at::Tensor values = plain.resolve_conj().resolve_neg().cpu().contiguous();
  digest.add(values.const_data_ptr(), values.nbytes());
}

bool is_equal_on_all(const at::Tensor& plain, const MeshPtr& mesh) {
  if (!mesh->is_member() || mesh->size() == 1) return true;
  const BelowAutograd guard;
  Digest digest;
  add_form(digest, plain);
  add_values(digest, plain);
  const CommScope scope("plain operand", CommScope::Cause::kProgram);
  return have_equal(*mesh->group(), "compare a plain operand", Facts("a plain operand").number(digest.value()));
}

}  // namespace shardwise
