// runtime/tensor/view_begin.h: the state that a view takes over from the tensor that it views: the memory, its offset in the memory
// that the global tensor would have, which storage_offset() returns, and whether it is an inference tensor.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/InferenceMode.h>

#include <memory>
#include <string_view>
#include <utility>

namespace shardwise {

struct ViewOrigin {
  int64_t begin = 0;  // in bytes, because a view may have another dtype
  TensorMemoryPtr memory;
  std::shared_ptr<OwnedRows> owned_rows = {};
  bool is_inference = false;
};

inline ViewOrigin origin_of(const DTensorImpl& viewed) {
  return {viewed.storage_offset() * static_cast<int64_t>(viewed.itemsize()), viewed.memory(), viewed.owned_rows(),
          !viewed.key_set().has(c10::DispatchKey::ADInplaceOrView)};
}

/// Call this for a new view of a tensor with this origin. The view begins `offset` elements (of its dtype) after the tensor does.
inline void begin_view(const at::Tensor& view, ViewOrigin origin, int64_t offset = 0) {
  auto* impl = maybe_dtensor(view);
  impl->set_memory(std::move(origin.memory));
  if (origin.owned_rows) impl->set_owned_rows(std::move(origin.owned_rows));
  if (origin.begin == 0 && offset == 0) return;
  impl->set_storage_offset(origin.begin / static_cast<int64_t>(impl->itemsize()) + offset);
}

/// wrap() for the view that operator `op` makes. As in torch, the view is an inference tensor if the viewed tensor is one, in any mode. There are two
/// exceptions: view.dtype follows the mode, as operators that are no views do, and detach() outside the mode gives an inference tensor that counts
/// versions, so that writes to it are allowed.
inline at::Tensor wrap_view(std::string_view op, SpecPtr spec, Shards&& shards, ViewOrigin origin, int64_t offset = 0) {
  const bool is_inference = origin.is_inference;
  const auto made = [&] {
    at::Tensor view = wrap(std::move(spec), std::move(shards));
    begin_view(view, std::move(origin), offset);
    return view;
  };
  if (is_inference == c10::InferenceMode::is_enabled() || op == "aten::view.dtype") [[likely]]
    return made();
  at::Tensor view = [&] {
    const c10::InferenceMode mode(is_inference);
    return made();
  }();
  if (!is_inference || op != "aten::detach") return view;
  return at::Tensor(maybe_dtensor(view)->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_change=*/true));
}

}  // namespace shardwise
