// runtime/tensor/dtensor_impl.h: the TensorImpl of a distributed tensor: global shape outside, this rank's pieces inside.
#pragma once

#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"
#include "runtime/tensor/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>

namespace shardwise {

/// The dispatch key of distributed tensors, and the one that autograd gives them.
inline constexpr c10::DispatchKey kTensorKey = c10::DispatchKey::PrivateUse2;
inline constexpr c10::DispatchKey kAutogradKey = c10::DispatchKey::AutogradPrivateUse2;

class LocalForm;
class OwnedRows;
class ViewLink;
struct SparseEntries;

/// Sizes and strides are the global ones; storage is the first piece's. Made by wrap() and wrap_sparse().
class DTensorImpl final : public c10::TensorImpl {
 public:
  /// `is_sparse`: the pieces are sparse COO tensors (runtime/tensor/sparse.h), and so is this: layout() says it.
  DTensorImpl(SpecPtr spec, Shards shards, c10::Device device, bool is_sparse = false);
  ~DTensorImpl() override { set_memory({}); }

  const SpecPtr& spec() const { return spec_; }
  /// Waits where they are still on their way; sends nothing. Safe to call from several threads.
  /// Throws: c10::ValueError where is_stale(): an operator calls refresh() first; c10::NotImplementedError where holds_subclass().
  const Shards& shards() const {
    if (state_.load(std::memory_order_acquire) != kReady) [[unlikely]] {
      check_has_memory();
      make_ready();
    }
    return shards_;
  }
  /// The same, also where it is a subclass (runtime/tensor/subclass.h): for what runs its operators and reads no memory.
  const Shards& local_tensors() const {
    if (state_.load(std::memory_order_acquire) != kReady) make_ready();
    return shards_;
  }
  /// True where this rank's local tensor is of a class that alone knows its memory.
  bool holds_subclass() const { return state_.load(std::memory_order_relaxed) & kSubclass; }
  /// The pieces are what `pending` gives at first use. Pre: no other thread has this tensor yet.
  void set_pending(std::shared_ptr<PendingMove> pending);
  /// True where shards() has nothing to wait for, and refresh() nothing to fetch.
  bool is_ready() const { return state_.load(std::memory_order_acquire) == kReady; }
  /// Streams that use `alias`, which shares this tensor's memory, wait for this tensor's move as those that use this tensor do.
  void share_arrival(DTensorImpl& alias) const;
  bool is_pending() const { return state_.load(std::memory_order_acquire) & kPending; }

  /// How the rows of this tensor's memory are owned, for views and aliases to share; null for all but lookups. It may not hold for this
  /// tensor: OwnedRows::are_rows_of().
  const std::shared_ptr<OwnedRows>& owned_rows() const { return owned_rows_; }
  void set_owned_rows(std::shared_ptr<OwnedRows> rows);

  /// Of a copied view, how its values come and go; null for all others.
  const std::shared_ptr<ViewLink>& view_link() const { return view_link_; }
  void set_view_link(std::shared_ptr<ViewLink> link);
  /// True for a copied view whose values must come from other ranks again, since an operator wrote to its source. The same on all ranks.
  bool is_stale() const;
  /// Fetches a stale view's values. Operators call it before they read; collective over the source's mesh where is_stale().
  void refresh() const;

  /// Of a sparse tensor: what is known of its entries. Of the tensor of its indices: the same. Null for all others.
  const std::shared_ptr<SparseEntries>& entries() const { return entries_; }
  void set_entries(std::shared_ptr<SparseEntries> entries) { entries_ = std::move(entries); }

  /// True where a hook brings the gradients of this leaf to its layout (runtime/dispatch/gradient_layout.h).
  bool has_gradient_layout() const { return has_gradient_layout_; }
  void set_has_gradient_layout() { has_gradient_layout_ = true; }

  /// The memory that views and aliases of a tensor share, and no other tensor of the process; made when it is first asked for. Safe to call from several
  /// threads.
  TensorMemoryPtr memory() const;
  /// Null where nobody has asked for it.
  TensorMemory* known_memory() const { return memory_.load(std::memory_order_acquire); }
  /// Pre: no other thread has this tensor yet.
  void set_memory(TensorMemoryPtr memory);
  /// To be held while an operator writes to this tensor.
  MemoryWrite begin_write() const;

  /// The local shards that this tensor was made from, for to_local() to give back; undefined for all others.
  const at::Tensor& given() const { return given_; }
  void set_given(at::Tensor local) { given_ = std::move(local); }

  /// The form of a C++ tensor class (runtime/api/local_form.h) in which to_local() gives this rank's part; null for a plain tensor.
  const LocalForm* local_form() const { return local_form_; }
  /// Set by keep_local_form(), which hands it on to the gradient too.
  void set_local_form(const LocalForm* form) { local_form_ = form; }

  const c10::Storage& storage() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  void release_resources() override;

 private:
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const;

  /// The slow path of shards(): waits, and copies a view of this rank's own memory again.
  void make_ready() const;
  void check_has_memory() const;
  /// Waits for a pending move.
  void wait() const;
  /// Flags that send shards() to the slow path.
  static constexpr uint8_t kReady = 0, kPending = 1, kLinked = 2, kOwned = 4, kSubclass = 8;

  SpecPtr spec_;
  mutable Shards shards_;
  mutable std::shared_ptr<PendingMove> pending_;         // used under the ObjectLock of this
  mutable std::atomic<TensorMemory*> memory_ = nullptr;  // owned
  mutable std::atomic<uint8_t> state_ = kReady;          // kPending is cleared after shards_ is set
  std::shared_ptr<ViewLink> view_link_;
  std::shared_ptr<SparseEntries> entries_;
  at::Tensor given_;
  const LocalForm* local_form_ = nullptr;
  bool has_gradient_layout_ = false;
  std::shared_ptr<OwnedRows> owned_rows_;
};

/// Null where `tensor` is undefined or not distributed. Cost: one test of a bit.
inline DTensorImpl* maybe_dtensor(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kTensorKey)
             ? static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}
inline bool is_dtensor(const at::TensorBase& tensor) { return maybe_dtensor(tensor) != nullptr; }

/// The spec of a distributed tensor. Throws: c10::TypeError for any other.
const SpecPtr& spec_of(const at::Tensor& tensor);

/// A distributed tensor of `spec` over these pieces (aliased, not copied; of a ragged layout copied where they are not joined()).
/// Pre: `shards` agree with `spec->boxes()` in number and sizes. Calls the wrap hook.
at::Tensor wrap(SpecPtr spec, Shards shards);

/// Called with every new distributed tensor and no lock held: the Python bindings attach their class with it.
using WrapHook = void (*)(const at::Tensor&);
void set_wrap_hook(WrapHook hook);

}  // namespace shardwise
