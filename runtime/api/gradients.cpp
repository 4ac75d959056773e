#include "runtime/api/gradients.h"

#include "runtime/api/redistribute.h"
#include "runtime/comm/torch_versions.h"
#include "runtime/tensor/object_lock.h"
#include "runtime/tensor/subclass.h"
#include "runtime/tensor/version_counter.h"

#include <algorithm>

namespace shardwise {
namespace {

/// The object detached, or itself if it requires no gradient or refuses aten.detach. Operators on pieces run below autograd and record
/// nothing.
at::Tensor without_history(const at::Tensor& object) {
  if (!object.requires_grad()) return object;
  try {
    return object.detach();
  } catch (const std::exception& refusal) {
    taken_error(refusal);
    return object;
  }
}

/// True for a replica whose elements share memory. torch copies such a gradient before it keeps or changes it, so slices of it may share its memory.
bool is_expanded(const Spec& spec) {
  if (!spec.layout().is_replicated()) return false;
  for (int64_t dim = 0; dim < spec.dim(); ++dim)
    if (spec.sizes()[dim] > 1 && spec.strides()[dim] == 0) return true;
  return false;
}

/// True if nobody else can see the gradient's memory. That is autograd's rule to add to a gradient in place, except that memory which torch did not
/// allocate, such as NumPy's, is left alone.
bool may_be_written(const at::Tensor& grad) {
  const auto& impl = *maybe_dtensor(grad);
  return !c10::GradMode::is_enabled() && impl.is_ready() && !impl.holds_subclass() && is_held_once(grad) &&
         std::ranges::all_of(impl.shards(), [](const at::Tensor& piece) {
           return piece.has_storage() && piece.storage().use_count() == 1 && piece.storage().resizable() &&
                  piece.is_non_overlapping_and_dense();
         });
}

at::Tensor detached_counted_by(const at::Tensor& piece, const c10::VariableVersion& version) {
  constexpr c10::DispatchKeySet kWrapped(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Python});
  auto* impl = piece.unsafeGetTensorImpl();
  if (is_subclass(piece)) [[unlikely]]
    return without_history(piece);
  if (impl->key_set().has_any(kWrapped) || piece._fw_grad(0).defined() || piece.is_inference()) return piece.detach();
  return at::Tensor(impl->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/false));
}

}  // namespace

at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec, const PlanOptions& options) {
  if (!grad.defined() || !is_dtensor(grad)) return grad;
  const auto* impl = maybe_dtensor(grad);
  const SpecPtr& from = impl->spec();
  if (from->mesh() == spec.mesh() && from->placements() == spec.placements()) return grad;
  if (!is_expanded(*from) || from->mesh() != spec.mesh() || spec.layout().has_terms() || records(grad) ||
      grad._fw_grad(/*level=*/0).defined())
    return redistribute(grad, spec.mesh(), spec.placements().vec(),
                        {.plan = options, .memory = may_be_written(grad) ? MoveMemory::kTaken : MoveMemory::kOwn});
  const SpecPtr to = from->placed_in_memory(spec.placements().vec());
  return wrap(to, move(*impl, to, options, MoveMemory::kShared));
}

bool is_held_once(const at::Tensor& grad) {
  return is_stealable(grad) && std::ranges::all_of(maybe_dtensor(grad)->shards(),
                                                   [](const at::Tensor& piece) { return is_stealable(piece); });
}

void share_version(const at::Tensor& tensor, const at::Tensor& other) {
  const auto& version = other.unsafeGetTensorImpl()->version_counter();
  if (!tensor.is_inference() && version.enabled()) tensor.unsafeGetTensorImpl()->set_version_counter(version);
}

at::Tensor detached(const at::Tensor& piece) {
  return detached_counted_by(piece, piece.unsafeGetTensorImpl()->version_counter());
}

at::Tensor detached(const at::Tensor& piece, const c10::TensorImpl& owner) {
  const auto& version = owner.version_counter();
  return version.enabled() ? detached_counted_by(piece, version) : detached(piece);
}

at::Tensor detached(const at::Tensor& piece, const DTensorImpl& owner) {
  return owner.view_link() ? detached(piece) : detached(piece, static_cast<const c10::TensorImpl&>(owner));
}

at::Tensor piece_for_caller(const at::Tensor& piece, const DTensorImpl& owner) {
  auto* impl = piece.unsafeGetTensorImpl();
  const auto& version = owner.version_counter();
  if (share_version_counter(*impl, owner) || is_subclass(piece)) return piece;
  if (owner.view_link() || !version.enabled() || piece.is_inference()) return detached(piece, owner);
  const ObjectLock lock(&owner);
  if (piece.use_count() > 1) return detached(piece, owner);
  impl->set_version_counter(version);
  return piece;
}

}  // namespace shardwise
