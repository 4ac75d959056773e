#include "runtime/api/equal_values.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/tensor/below_autograd.h"

#include <optional>

namespace shardwise {
namespace {

/// Nothing for what is no single value.
std::optional<Facts> facts_of(const at::Tensor& plain) {
  const bool is_readable = plain.layout() == at::kStrided && plain.has_storage() && !plain.is_meta() &&
                           !plain.key_set().has(c10::DispatchKey::Python);
  if (plain.numel() != 1 || !is_readable) return std::nullopt;
  const at::Tensor value = plain.resolve_conj().resolve_neg().cpu().contiguous();
  Facts facts("a number");
  facts.number(static_cast<int64_t>(plain.scalar_type())).number(plain.dim());
  facts.text({static_cast<const char*>(value.const_data_ptr()), value.nbytes()});
  return facts;
}

}  // namespace

bool is_one_value_on_all(const at::Tensor& plain, const MeshPtr& mesh) {
  if (!mesh->is_member()) return true;
  const BelowAutograd guard;
  const std::optional<Facts> own = facts_of(plain);
  if (mesh->is_meta()) return own.has_value();
  const CommScope scope("plain operand", CommScope::Cause::kProgram);
  return have_equal(*mesh->group(), "compare a plain operand", own.value_or(Facts("no number"))) && own.has_value();
}

}  // namespace shardwise
