// wrappers/local_shards_impl.h: the TensorImpl of a LocalShardsWrapper: this rank's pieces of a table, and their offsets in it.
//
// A 8x16 table's rows [2, 4) and [6, 8) on one rank: shards of [2, 16] and [2, 16], offsets [2, 0] and [6, 0]; the wrapper
// itself is a [4, 16] tensor.
#pragma once

#include "placements/box.h"
#include "runtime/api/gradients.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <vector>

namespace shardwise {

/// The dispatch key of wrappers, and the matching autograd key.
inline constexpr c10::DispatchKey kLocalShardsKey = c10::DispatchKey::PrivateUse3;
inline constexpr c10::DispatchKey kAutogradLocalShardsKey = c10::DispatchKey::AutogradPrivateUse3;

/// Pieces and offsets are two lists of equal length. All pieces have the wrapper's dtype and device.
class LocalShardsImpl final : public c10::TensorImpl {
 public:
  LocalShardsImpl(std::vector<at::Tensor> shards, std::vector<Dims> offsets, c10::IntArrayRef sizes,
                  at::ScalarType dtype, c10::Device device);

  const std::vector<at::Tensor>& shards() const { return shards_; }
  const std::vector<Dims>& offsets() const { return offsets_; }

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

  std::vector<at::Tensor> shards_;
  std::vector<Dims> offsets_;
};

/// Null if `tensor` is undefined or no wrapper.
inline LocalShardsImpl* maybe_local_shards(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kLocalShardsKey)
             ? static_cast<LocalShardsImpl*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}
inline bool is_local_shards(const at::TensorBase& tensor) { return maybe_local_shards(tensor) != nullptr; }

/// The boxes of pieces with these offsets.
std::vector<Box> boxes_of_shards(const std::vector<at::Tensor>& shards, const std::vector<Dims>& offsets);

/// A wrapper over these pieces (aliased, not copied). Without pieces it has the dtype and device of `options`, and `n_dims` dims. Pre: the pieces are
/// checked. Calls the hook.
///
/// If the pieces are a grid (whole rows, whole columns, 1-D pieces, or every cell of some row and column ranges), its sizes are theirs without the
/// gaps between them. Other pieces give [number of elements, 1], and no pieces give zeros.
at::Tensor wrap_local_shards(std::vector<at::Tensor> shards, std::vector<Dims> offsets,
                             const at::TensorOptions& options, int64_t n_dims);

/// Called with every new wrapper and no lock held: the Python bindings attach their class with it.
using LocalShardsHook = void (*)(const at::Tensor&);
void set_local_shards_hook(LocalShardsHook hook);

}  // namespace shardwise
