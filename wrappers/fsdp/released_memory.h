// wrappers/fsdp/released_memory.h: storages that lose their memory while tensors keep them, and get other memory later.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace shardwise {

/// True where torch can refuse to read a storage, and take that back: since 2.12.
template <class Storage>
constexpr bool kCanRefuseReads = requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };

/// Frees the memory of `storage`, whose size stays; reading it is an error that says `why`, a text that lives as long as the program.
/// False, and nothing done, where torch cannot refuse.
template <class Storage = c10::StorageImpl>
bool release_memory(Storage& storage, const char* why) {
  if constexpr (kCanRefuseReads<Storage>) {
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
    return true;
  }
  return false;
}

/// The reverse: the memory of `storage` is `data`, of as many bytes.
template <class Storage = c10::StorageImpl>
void give_memory(Storage& storage, c10::DataPtr data) {
  if constexpr (kCanRefuseReads<Storage>) storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(std::move(data));
}

}  // namespace shardwise
