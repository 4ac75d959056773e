// runtime/tensor/dtensor_impl.h: the TensorImpl of a distributed tensor: a tensor of global shape that holds this rank's pieces.
#pragma once

#include "runtime/tensor/spec.h"
#include "runtime/tensor/symbolic_sizes.h"
#include "runtime/tensor/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <utility>

namespace shardwise {

/// The dispatch key of distributed tensors, and its autograd key.
inline constexpr c10::DispatchKey kTensorKey = c10::DispatchKey::PrivateUse2;
inline constexpr c10::DispatchKey kAutogradKey = c10::DispatchKey::AutogradPrivateUse2;
/// Distributed tensors on meta have this key, too, and operators see it first. torch itself does not use it.
///
/// The dispatcher ranks the backends of operands, and Meta above ours. So it would call torch's meta kernel for a distributed tensor next to
/// a plain tensor on meta. The kernel of this key passes the call on without the backend Meta.
inline constexpr c10::DispatchKey kMetaKey = c10::DispatchKey::DeferredInit;

class LocalForm;
class OwnedRows;
class ViewLink;
struct SparseEntries;

/// Sizes and strides are global; the storage is that of the first piece. Created by wrap() and wrap_sparse().
class DTensorImpl final : public c10::TensorImpl {
 public:
  /// `is_sparse`: the pieces are sparse COO tensors (runtime/tensor/sparse.h), and layout() of this tensor is sparse too.
  DTensorImpl(SpecPtr spec, Shards&& shards, c10::Device device, bool is_sparse = false);
  ~DTensorImpl() override { set_memory({}); }

  const SpecPtr& spec() const { return spec_; }
  /// This rank's pieces. Waits for pieces in flight; sends nothing. Thread-safe.
  /// Throws: c10::ValueError if is_stale(), because operators must call refresh() first; c10::NotImplementedError if holds_subclass().
  const Shards& shards() const {
    if (state_.load(std::memory_order_acquire) != kReady) [[unlikely]] {
      check_has_memory();
      make_ready();
    }
    return shards_;
  }
  /// shards(), also for a subclass (runtime/tensor/subclass.h). For callers that run its operators and do not read memory.
  const Shards& local_tensors() const {
    if (state_.load(std::memory_order_acquire) != kReady) make_ready();
    return shards_;
  }
  /// True if this rank's local tensor is of a subclass, whose memory only the class can read.
  bool holds_subclass() const { return state_.load(std::memory_order_relaxed) & kSubclass; }
  /// Makes the pieces come from `pending` at first use. Pre: no other thread has this tensor yet.
  void set_pending(std::shared_ptr<PendingMove> pending);
  /// True if shards() need not wait and refresh() need not fetch.
  bool is_ready() const { return state_.load(std::memory_order_acquire) == kReady; }
  /// Makes streams that use `alias`, which shares this tensor's memory, wait for this tensor's move.
  void share_arrival(DTensorImpl& alias) const;
  bool is_pending() const { return state_.load(std::memory_order_acquire) & kPending; }

  /// The owners of rows in this tensor's memory, shared with views and aliases; null except for lookups. They may not apply to this tensor:
  /// check OwnedRows::are_rows_of().
  const std::shared_ptr<OwnedRows>& owned_rows() const { return owned_rows_; }
  void set_owned_rows(std::shared_ptr<OwnedRows> rows);

  /// For a copied view: the link to its source. Null for all other tensors.
  const std::shared_ptr<ViewLink>& view_link() const { return view_link_; }
  void set_view_link(std::shared_ptr<ViewLink> link);
  /// True for a copied view whose values must be fetched from other ranks again, because an operator wrote to its source. Equal on all
  /// ranks.
  bool is_stale() const;
  /// Fetches a stale view's values. Operators call it before they read. Collective over the source's mesh if is_stale().
  void refresh() const;

  /// The known facts about entries, for a sparse tensor and for the tensor of its indices. Null for all others.
  const std::shared_ptr<SparseEntries>& entries() const { return entries_; }
  void set_entries(std::shared_ptr<SparseEntries> entries) { entries_ = std::move(entries); }

  /// True if a hook lays out the gradients of this leaf (runtime/api/gradient_layout.h).
  bool has_gradient_layout() const { return has_gradient_layout_; }
  void set_has_gradient_layout() { has_gradient_layout_ = true; }

  /// The memory object that views and aliases of a tensor share and no other tensor has. Created on first request. Thread-safe.
  TensorMemoryPtr memory() const;
  /// Null if it was never requested.
  TensorMemory* known_memory() const { return memory_.load(std::memory_order_acquire); }
  /// Pre: no other thread uses this tensor.
  void set_memory(TensorMemoryPtr memory) {
    TensorMemory* const old = known_memory();
    memory_.store(memory.release(), std::memory_order_release);
    if (old) TensorMemoryPtr::reclaim(old);
  }
  /// The result must be held while an operator writes to this tensor.
  MemoryWrite begin_write() const;

  /// The local shards object from which this tensor was made, which to_local() returns; undefined for all other tensors.
  const at::Tensor& given() const { return given_; }
  void set_given(at::Tensor local) { given_ = std::move(local); }

  /// The form of a C++ tensor class (runtime/api/local_form.h) in which to_local() returns this rank's part; null for a plain tensor.
  const LocalForm* local_form() const { return local_form_; }
  /// Called by keep_local_form(), which also sets the form of the gradient.
  void set_local_form(const LocalForm* form) { local_form_ = form; }

  /// For traced pieces whose sizes are symbols; null for all other tensors.
  const SymbolicSizes* symbols() const { return symbols_.get(); }
  void fix_symbols() const;

  const c10::Storage& storage() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  void release_resources() override;

  // Called if there are symbols. Numbers fix them, except below KeepsSymbols.
  c10::IntArrayRef sizes_custom() const override;
  c10::IntArrayRef strides_custom() const override;
  int64_t numel_custom() const override;
  int64_t storage_offset_custom() const override;
  c10::SymIntArrayRef sym_sizes_custom() const override;
  c10::SymIntArrayRef sym_strides_custom() const override;
  c10::SymInt sym_numel_custom() const override;

 private:
  void take_symbols();
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const;

  /// The slow path of shards(): waits, and refreshes a view if this needs only this rank's memory.
  void make_ready() const;
  void check_has_memory() const;
  /// Waits for a pending move.
  void wait() const;
  /// Flags that make shards() take the slow path.
  static constexpr uint8_t kReady = 0, kPending = 1, kLinked = 2, kOwned = 4, kSubclass = 8;

  SpecPtr spec_;
  mutable Shards shards_;
  mutable std::shared_ptr<PendingMove> pending_;         // guarded by this object's ObjectLock
  mutable std::atomic<TensorMemory*> memory_ = nullptr;  // owned
  mutable std::atomic<uint8_t> state_ = kReady;          // kPending is cleared after shards_ is set
  std::shared_ptr<ViewLink> view_link_;
  std::shared_ptr<SparseEntries> entries_;
  at::Tensor given_;
  const LocalForm* local_form_ = nullptr;
  bool has_gradient_layout_ = false;
  std::shared_ptr<OwnedRows> owned_rows_;
  std::unique_ptr<SymbolicSizes> symbols_;
  /// Without pieces: another reference to storage_, as pieces have. Autograd adds gradients in place where it has the only one, and does so on no rank.
  c10::Storage no_memory_;
};

/// Null if `tensor` is undefined or not distributed. Cost: one bit test.
[[gnu::always_inline]] inline DTensorImpl* maybe_dtensor(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kTensorKey)
             ? static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}
inline bool is_dtensor(const at::TensorBase& tensor) { return maybe_dtensor(tensor) != nullptr; }

/// The spec of a distributed tensor. Throws: c10::TypeError for any other tensor.
const SpecPtr& spec_of(const at::Tensor& tensor);

/// The pieces, of any class, for a read that one rank may do alone: printing, saving, to_local. Waits for pieces in flight; sends nothing.
/// Throws: c10::ValueError, naming `reader`, if DTensorImpl::is_stale().
const Shards& shards_read_by(const DTensorImpl& tensor, const char* reader);

/// A distributed tensor of `spec` with these pieces (aliased, not copied; joined boxes are copied unless they are joined()).
/// Pre: `shards` match `spec->boxes()` in number and sizes. Calls the wrap hook.
at::Tensor wrap(SpecPtr spec, Shards&& shards);
inline at::Tensor wrap(SpecPtr spec, const Shards& shards) { return wrap(std::move(spec), Shards(shards)); }

/// The storage of a tensor without pieces.
const c10::Storage& no_storage();

/// Called with every new distributed tensor, while no lock is held. The Python bindings use it to attach their class.
using WrapHook = void (*)(const at::Tensor&);
void set_wrap_hook(WrapHook hook);
/// True once set_wrap_hook() was called, that is, in a Python program.
bool has_wrap_hook();

}  // namespace shardwise
