#include "runtime/tensor/dtensor_impl.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/no_messages.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/object_lock.h"
#include "runtime/tensor/owned_rows.h"
#include "runtime/tensor/sparse.h"
#include "runtime/tensor/traced_pieces.h"
#include "runtime/tensor/view_link.h"
#include "text/check.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <exception>

namespace shardwise {
namespace {

constexpr const char* kReadsStale =
    "[DTensor] a view whose values come from other ranks is read after its source was written to. Call clone() on all "
    "ranks, and read the result.";

std::atomic<WrapHook> wrap_hook{nullptr};
/// Called before the first sparse tensor.
std::atomic<void (*)()> prepare_sparse{nullptr};

/// Replaces a move that failed: every use throws its error.
class FailedMove final : public PendingMove {
 public:
  explicit FailedMove(std::exception_ptr reason) : reason_(std::move(reason)) {}
  Shards finish() override { std::rethrow_exception(reason_); }

 private:
  std::exception_ptr reason_;
};

/// A finished move whose pieces are ordered on the stream that was current. Other streams wait for its event.
class ArrivedMove final : public PendingMove {
 public:
  explicit ArrivedMove(c10::Device device) : device_(device), end_(device.type()) { end_.record(current_stream()); }

  /// Makes the current stream wait for the pieces. False if they have arrived for every stream.
  bool follow() {
    if (end_.query()) return false;
    end_.block(current_stream());
    return true;
  }
  Shards finish() override { TORCH_INTERNAL_ASSERT(false, "a move ends once"); }

 private:
  c10::Stream current_stream() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  c10::Device device_;
  c10::Event end_;
};

void announce(const at::Tensor& tensor) {
  if (auto hook = wrap_hook.load(std::memory_order_relaxed)) hook(tensor);
}

/// Our keys, and the key by which autocast recognizes tensors of the device, because PrivateUse2 has none. A sparse tensor also has its own
/// key, which operators see first.
c10::DispatchKeySet keys_of(c10::Device device) {
  const auto backend = c10::toBackendComponent(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
  const auto keys = c10::DispatchKeySet({kTensorKey, kAutogradKey}) | c10::getAutocastRelatedKeySetFromBackend(backend);
  return device.is_meta() ? keys.add(kMetaKey) : keys;
}

c10::DispatchKeySet keys_of(c10::Device device, bool is_sparse) {
  static const c10::DispatchKeySet of_cpu = keys_of(c10::kCPU);
  const c10::DispatchKeySet keys = device.is_cpu() ? of_cpu : keys_of(device);
  return is_sparse ? keys.add(c10::DispatchKey::SparsePrivateUse2) : keys;
}

}  // namespace

DTensorImpl::DTensorImpl(SpecPtr spec, Shards&& shards, c10::Device device, bool is_sparse)
    : TensorImpl(keys_of(device, is_sparse), c10::scalarTypeToTypeMeta(spec->dtype()), device),
      spec_(std::move(spec)),
      shards_(std::move(shards)) {
  sizes_and_strides_.set_sizes(spec_->sizes());
  sizes_and_strides_.set_strides(spec_->strides());
  refresh_numel();
  refresh_contiguous();
  if (!shards_.empty() && is_subclass(shards_[0])) [[unlikely]] {
    state_ = kSubclass;
    return;
  }
  // Tracers identify tensors by their storages, and resize these.
  if (spec_->boxes().empty() && !is_sparse) [[unlikely]]
    storage_ = no_memory_ = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU),
                                         c10::GetCPUAllocator(), true);
  if (is_traced(shards_)) [[unlikely]] {
    set_python_dispatch(true);
    take_symbols();
  }
}

void DTensorImpl::take_symbols() {
  symbols_ = symbolic_sizes_of(*spec_, shards_);
  set_custom_sizes_strides(symbols_ ? SizesStridesPolicy::CustomSizes : SizesStridesPolicy::Default);
}

void DTensorImpl::fix_symbols() const {
  if (symbols_ && !KeepsSymbols::is_active()) shardwise::fix_symbols(symbols_->sizes);
}

// A tracer may set symbols of its own besides, in the base class.

c10::IntArrayRef DTensorImpl::sizes_custom() const {
  fix_symbols();
  return symbols_ ? spec_->sizes() : TensorImpl::sizes_custom();
}

c10::IntArrayRef DTensorImpl::strides_custom() const {
  fix_symbols();
  if (symbols_ && !KeepsSymbols::is_active()) shardwise::fix_symbols(symbols_->strides);  // sizes may have no symbols
  return symbols_ ? spec_->strides() : TensorImpl::strides_custom();
}

int64_t DTensorImpl::numel_custom() const {
  fix_symbols();
  return symbols_ ? spec_->numel() : TensorImpl::numel_custom();
}

int64_t DTensorImpl::storage_offset_custom() const {
  return symbols_ && has_symbolic_sizes_strides() ? 0 : TensorImpl::storage_offset_custom();
}

c10::SymIntArrayRef DTensorImpl::sym_sizes_custom() const {
  return symbols_ ? c10::SymIntArrayRef(symbols_->sizes) : TensorImpl::sym_sizes_custom();
}

c10::SymIntArrayRef DTensorImpl::sym_strides_custom() const {
  return symbols_ ? c10::SymIntArrayRef(symbols_->strides) : TensorImpl::sym_strides_custom();
}

c10::SymInt DTensorImpl::sym_numel_custom() const {
  return symbols_ ? symbols_->numel : TensorImpl::sym_numel_custom();
}

void DTensorImpl::set_pending(std::shared_ptr<PendingMove> pending) {
  pending_ = std::move(pending);
  state_.fetch_or(kPending, std::memory_order_release);
}

void DTensorImpl::set_view_link(std::shared_ptr<ViewLink> link) {
  view_link_ = std::move(link);
  if (view_link_)
    state_.fetch_or(kLinked, std::memory_order_release);
  else
    state_.fetch_and(static_cast<uint8_t>(~kLinked), std::memory_order_release);
}

bool DTensorImpl::is_stale() const { return view_link_ && view_link_->is_stale() && view_link_->needs_other_ranks(); }

void DTensorImpl::refresh() const {
  if (view_link_ && view_link_->is_stale()) view_link_->refresh(spec_, shards_);
}

TensorMemoryPtr DTensorImpl::memory() const {
  if (TensorMemory* const known = known_memory()) return TensorMemoryPtr::reclaim_copy(known);
  TensorMemory* fresh = c10::make_intrusive<TensorMemory>().release();
  TensorMemory* expected = nullptr;
  if (memory_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel))
    return TensorMemoryPtr::reclaim_copy(fresh);
  TensorMemoryPtr::reclaim(fresh);  // another thread was first
  return TensorMemoryPtr::reclaim_copy(expected);
}

MemoryWrite DTensorImpl::begin_write() const {
  if (owned_rows_) owned_rows_->note_write();
  return MemoryWrite(known_memory());
}

void DTensorImpl::check_has_memory() const {
  if (!holds_subclass()) return;
  const std::string op = CommScope::current_op();
  SW_CHECK_NOT_IMPLEMENTED(false,
                           "[{}] the local tensor is a {}. Only its own operators can read its memory, but this call "
                           "reads memory directly. Use to_local(), or redistribute before you wrap the parts.",
                           op.empty() ? "DTensor" : op, class_of(shards_[0]));
}

void DTensorImpl::make_ready() const {
  wait();
  if (!view_link_) return;
  TORCH_CHECK_VALUE(!is_stale(), kReadsStale);
  refresh();  // reads only this rank's own memory
}

void DTensorImpl::wait() const {
  if (!is_pending()) return;
  const ObjectLock lock(this);
  if (!is_pending()) return;  // another thread has waited
  if (auto* const arrived = dynamic_cast<ArrivedMove*>(pending_.get())) {
    if (arrived->follow()) return;
  } else {
    try {
      shards_ = pending_->finish();
      if (spec_->flat_sizes()) shards_ = joined(*spec_, std::move(shards_));
    } catch (...) {
      pending_ = std::make_shared<FailedMove>(std::current_exception());
      throw;
    }
    if (!device_opt_->is_cpu() && !device_opt_->is_meta()) {
      pending_ = std::make_shared<ArrivedMove>(*device_opt_);
      return;
    }
  }
  pending_.reset();
  state_.fetch_and(static_cast<uint8_t>(~kPending), std::memory_order_release);
}

void DTensorImpl::set_owned_rows(std::shared_ptr<OwnedRows> rows) {
  owned_rows_ = std::move(rows);
  if (owned_rows_) state_.fetch_or(kOwned, std::memory_order_release);  // writes take the general path, which ends it
}

void DTensorImpl::share_arrival(DTensorImpl& alias) const {
  if (!is_pending()) return;
  const ObjectLock lock(this);
  if (is_pending()) alias.set_pending(pending_);
}

const c10::Storage& DTensorImpl::storage() const {
  if (is_pending()) [[unlikely]] {
    const Reading guard("storage");
    wait();
  }
  if (storage_) [[unlikely]]
    return storage_;
  return is_sparse() || shards_.empty() ? no_storage() : shards_[0].storage();
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::copy(Version&& version, bool allow_change) const {
  if (is_pending()) [[unlikely]] {
    const Reading guard("detach");
    wait();
  }
  auto result =
      c10::make_intrusive<DTensorImpl>(spec_, Shards(shards_), *device_opt_, is_sparse());  // stale if this tensor is
  share_arrival(*result);
  copy_tensor_metadata(this, result.get(), std::forward<Version>(version), allow_change);
  result->set_view_link(view_link_);
  result->set_owned_rows(owned_rows_);
  result->entries_ = entries_;
  result->set_memory(memory());
  result->local_form_ = local_form_;
  result->given_ = given_;
  if (storage_) result->storage_ = storage_;
  result->no_memory_ = no_memory_;
  announce(at::Tensor(result));
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                         bool allow_change) const {
  return copy(version, allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                         bool allow_change) const {
  return copy(std::move(version), allow_change);
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  if (impl.get() == this) return;  // tensor.data = tensor, as in model.float() if it is float already
  TensorImpl::shallow_copy_from(impl);
  const auto* other = static_cast<DTensorImpl*>(impl.get());
  spec_ = other->spec_;
  no_memory_ = other->no_memory_;
  other->wait();
  shards_ = other->shards_;
  pending_.reset();
  state_ = static_cast<uint8_t>(other->state_ & kSubclass);
  other->share_arrival(*this);
  set_view_link(other->view_link_);
  set_owned_rows(other->owned_rows_);
  entries_ = other->entries_;
  set_memory(other->memory());
  local_form_ = other->local_form_;
  given_ = other->given_;
  if (symbols_ || other->symbols_) take_symbols();
}

void DTensorImpl::release_resources() {
  TensorImpl::release_resources();
  pending_.reset();
  owned_rows_.reset();
  view_link_.reset();
  set_memory({});
  state_ = kReady;
  shards_.clear();
  no_memory_ = {};
  given_.reset();
}

namespace {

at::Tensor make(SpecPtr spec, Shards&& shards, std::shared_ptr<SparseEntries> entries) {
  const c10::Device device = shards.empty() ? spec->mesh()->device() : shards[0].device();
  const bool is_sparse = entries != nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(shards.empty() || shards[0].is_sparse() == is_sparse,
                              "[DTensor] an operator returned sparse pieces for a dense result, or dense pieces for a "
                              "sparse result. Use to_dense() first.");
  TORCH_CHECK_NOT_IMPLEMENTED(shards.empty() || !shards[0].key_set().has(c10::DispatchKey::Batched),
                              "[DTensor] a piece has a hidden batch dim, which torch.autograd.grad(..., "
                              "is_grads_batched=True) gives it. Use torch.func.vmap, or call grad for each element.");
  if (spec->flat_sizes()) [[unlikely]]
    shards = joined(*spec, std::move(shards));
  auto tensor = at::detail::make_tensor<DTensorImpl>(std::move(spec), std::move(shards), device, is_sparse);
  if (is_sparse) maybe_dtensor(tensor)->set_entries(std::move(entries));
  announce(tensor);
  return tensor;
}

}  // namespace

const Shards& shards_read_by(const DTensorImpl& tensor, const char* reader) {
  SW_CHECK_VALUE(!tensor.is_stale(),
                 "[{}] reads this rank's values and sends nothing, but this tensor is a view whose values come from "
                 "other ranks, and its source has been written to. Call clone() on all ranks, and read the result.",
                 reader);
  if (tensor.is_ready()) return tensor.shards();
  const Reading guard(reader);
  return tensor.local_tensors();
}

const SpecPtr& spec_of(const at::Tensor& tensor) {
  const auto* impl = maybe_dtensor(tensor);
  TORCH_CHECK_TYPE(
      impl || !torch::autograd::get_current_node(),
      "[gradients] an autograd function returned a torch.Tensor as the gradient of a DTensor. Make a DTensor "
      "in its backward: for example by zeros_like or new_zeros of a saved DTensor.");
  TORCH_CHECK_TYPE(
      impl, "[shardwise] got a torch.Tensor where a DTensor is needed. Make one with distribute_tensor or from_local.");
  return impl->spec();
}

at::Tensor wrap(SpecPtr spec, Shards&& shards) { return make(std::move(spec), std::move(shards), nullptr); }

void at_first_sparse(void (*prepare)()) { prepare_sparse = prepare; }

at::Tensor wrap_sparse(SpecPtr spec, Shards shards, SparseEntries entries) {
  [[maybe_unused]] static const bool is_prepared = [] {
    if (auto* prepare = prepare_sparse.load()) prepare();
    return true;
  }();
  return make(std::move(spec), std::move(shards), std::make_shared<SparseEntries>(std::move(entries)));
}

const c10::Storage& no_storage() {
  static const auto* storage = new c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU));
  return *storage;
}

void set_wrap_hook(WrapHook hook) { wrap_hook = hook; }

bool has_wrap_hook() { return wrap_hook.load(std::memory_order_relaxed) != nullptr; }

}  // namespace shardwise
