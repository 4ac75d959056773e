// runtime/tensor/given_memory.h: memory that a program gave to from_local, and may write to past operators, on one rank alone, too.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

namespace detail {
/// Of a memory_id(): views and aliases, which share that, are told with it.
inline constexpr uint64_t kGivenMemory = uint64_t{1} << 63;
}  // namespace detail

/// To be called with a new tensor, before it has views. The same on all ranks.
inline void mark_given(DTensorImpl& tensor) { tensor.set_memory_id(tensor.memory_id() | detail::kGivenMemory); }

inline bool is_given(const DTensorImpl& tensor) { return (tensor.memory_id() & detail::kGivenMemory) != 0; }

}  // namespace shardwise
