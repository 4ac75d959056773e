// wrappers/fsdp/released_memory.h: frees the memory of storages that tensors still hold, and gives them memory again later.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace shardwise {

/// True if torch can refuse reads of a storage and allow them again, which it can since 2.12.
template <class Storage>
constexpr bool kCanRefuseReads = requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };

/// Frees the memory of `storage` and keeps its size. Reading it is then an error with the text `why`, which must live as long as the program. Returns
/// false, and does nothing, if torch cannot refuse reads.
template <class Storage = c10::StorageImpl>
bool release_memory(Storage& storage, const char* why) {
  if constexpr (kCanRefuseReads<Storage>) {
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
    return true;
  }
  return false;
}

/// The reverse: gives `storage` the memory `data`, of the same size.
template <class Storage = c10::StorageImpl>
void give_memory(Storage& storage, c10::DataPtr data) {
  if constexpr (kCanRefuseReads<Storage>) storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(std::move(data));
}

}  // namespace shardwise
