#include "runtime/api/equal_values.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/tensor.h>

namespace shardwise {
namespace {

/// No digest of one value: what ranks send that have no such value.
constexpr int64_t kNone = 0;

int64_t digest_of(const at::Tensor& plain) {
  const bool is_readable = plain.layout() == at::kStrided && plain.has_storage() && !plain.is_meta() &&
                           !plain.key_set().has(c10::DispatchKey::Python);
  if (plain.numel() != 1 || !is_readable) return kNone;
  Digest digest;
  digest.add(static_cast<int64_t>(plain.scalar_type()));
  digest.add(plain.dim());
  const at::Tensor value = plain.resolve_conj().resolve_neg().cpu().contiguous();
  digest.add(value.const_data_ptr(), value.nbytes());
  return digest.value() == kNone ? 1 : digest.value();
}

}  // namespace

bool is_one_value_on_all(const at::Tensor& plain, const MeshPtr& mesh) {
  if (!mesh->is_member()) return true;
  const BelowAutograd guard;
  const int64_t own = digest_of(plain);
  if (mesh->size() == 1 || mesh->is_meta()) return own != kNone;
  const Group& group = *mesh->group();
  const CommScope scope("plain operand", CommScope::Cause::kProgram);
  const at::Tensor all =
      gather_rows(group, "compare a plain operand", at::tensor({own}, at::kLong).to(numbers_device(group)));
  return own != kNone && all.eq(own).all().item<bool>();
}

}  // namespace shardwise
