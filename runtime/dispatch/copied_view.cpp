#include "runtime/dispatch/copied_view.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tracing.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/object_lock.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>

namespace shardwise {
namespace {

/// `tensor` narrowed to one element along each dim with stride 0, where elements repeat.
at::Tensor without_repeats(at::Tensor tensor, c10::IntArrayRef strides) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (strides[dim] == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  return tensor;
}

/// Copies values to `to`, to each element of its memory once.
void copy_once(const at::Tensor& to, const at::Tensor& from) {
  without_repeats(to, to.strides()).copy_(without_repeats(from, to.strides()));
}

/// The pieces, or the one local tensor that joined pieces form: a flattened view has other pieces than its source.
Shards local_tensors(const Spec& spec, const Shards& pieces) {
  return spec.layout().joined_dim() && spec.is_member() ? Shards{flat_part(spec, pieces)} : pieces;
}

void copy_reshaped(const Spec& from_spec, const Shards& from_pieces, const Spec& to_spec, const Shards& to_pieces) {
  const Shards from = local_tensors(from_spec, from_pieces), to = local_tensors(to_spec, to_pieces);
  for (size_t i = 0; i < to.size(); ++i)
    if (!from[i].is_alias_of(to[i])) copy_once(to[i], from[i].reshape(to[i].sizes()));
}

}  // namespace

CopiedView::CopiedView(Reason reason, const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t output)
    : reason_(reason), call_(op, args, output) {
  // An alias of the source, because an in-place operator (t_) may change the shape of the tensor itself.
  const auto* source = maybe_dtensor(ViewCall::source_in(op, args));
  source_ = at::Tensor(source->shallow_copy_and_detach(source->version_counter(), /*allow_change=*/false));
  memory_ = source_impl().memory();
  n_writes_ = memory_->n_writes();
}

bool CopiedView::is_stale() const { return n_writes_ != memory_->n_writes(); }

bool CopiedView::needs_other_ranks() const {
  if (!is_stale()) return false;
  const DTensorImpl& source = source_impl();
  return reason_ == Reason::kMoved ? source.spec()->mesh()->size() > 1 : source.is_stale();
}

void CopiedView::refresh(const SpecPtr& spec, const Shards& shards) {
  const ObjectLock lock(this);
  if (!is_stale()) return;  // another thread has refreshed it
  const BelowAutograd guard;
  const uint64_t seen = memory_->n_writes();
  source_impl().refresh();
  const Shards& sources = source_impl().shards();
  if (reason_ == Reason::kMoved) fetch(spec, shards);
  if (reason_ == Reason::kCopied) copy_reshaped(*source_impl().spec(), sources, *spec, shards);
  n_writes_ = seen;
}

void CopiedView::fetch(const SpecPtr& spec, const Shards& shards) const {
  const at::Tensor fetched = call_.of(*source_);
  const auto* impl = maybe_dtensor(fetched);
  TORCH_INTERNAL_ASSERT(impl->spec() == spec, "[", call_.op().name, "] gave ", to_string(*spec), " and now ",
                        to_string(*impl->spec()));
  for (size_t i = 0; i < shards.size(); ++i) copy_once(shards[i], impl->shards()[i]);
}

/// True if the view has every element of the source exactly once. Then a write back need not gather the source's values first.
bool CopiedView::covers(const Spec& spec) const {
  const Spec& source = *source_impl().spec();
  if (spec.numel() != source.numel() || spec.dtype() != source.dtype()) return false;
  const OutsideTracers outside;
  const at::Tensor view = call_.of(at::detail::empty_strided_meta(source.sizes(), source.strides(), source.dtype()));
  return view.is_non_overlapping_and_dense();
}

void CopiedView::set_current() {
  n_writes_ = memory_->n_writes();
  if (const auto& link = source_impl().view_link()) link->set_current();
}

void CopiedView::write_back(const DTensorImpl& view) {
  set_current();
  const SpecPtr& spec = view.spec();
  const Shards& shards = view.shards();
  BelowAutograd guard;
  if (reason_ == Reason::kMoved) bring(spec, shards);
  if (reason_ == Reason::kCopied) copy_reshaped(*spec, shards, *source_impl().spec(), source_impl().shards());
  after_write(source_impl());
}

void CopiedView::bring(const SpecPtr& spec, const Shards& shards) {
  const CommScope scope(call_.op().name.c_str());
  const DTensorImpl& target = source_impl();
  const SpecPtr& layout = target.spec();
  const Shards values = move(spec, shards, spec->replicated());
  Shards whole;
  if (!covers(*spec)) {
    whole = move(layout, target.shards(), layout->replicated());
    for (at::Tensor& each : whole)  // elements that share memory in the source do so here
      if (const at::Tensor once = without_repeats(each, layout->strides()); !once.is_same(each))
        each = once.expand(layout->sizes());
  } else if (layout->mesh()->is_member()) {
    whole = {at::empty_strided(layout->sizes(), layout->strides(), values[0].options().dtype(layout->dtype()))};
  }
  if (!whole.empty()) copy_once(call_.of(whole[0]), values[0]);
  const Shards pieces = move(layout->replicated(), whole, layout);
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!pieces[i].is_alias_of(target.shards()[i])) copy_once(target.shards()[i], pieces[i]);
}

void after_write(const DTensorImpl& written) {
  if (const auto& view = written.view_link()) view->write_back(written);
}

}  // namespace shardwise
