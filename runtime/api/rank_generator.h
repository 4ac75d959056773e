// runtime/api/rank_generator.h: the generator of random numbers of a rank that is a thread.
//
// torch has one default generator per process, which such ranks share. Each draws from a copy of its own, so that they draw alike
// however they take turns. Processes use torch's.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace shardwise {

/// This thread's copy of what `shared` was when the ranks were started. It begins anew when the seed of `shared` is another; no more once
/// seed_rank() or set_rank_state() was called in this thread. Pre: `shared` is locked.
at::Generator& rank_generator(const at::Generator& shared);

/// Its state, as torch.Generator.get_state() gives it.
at::Tensor rank_state();
/// Goes on from a state. Throws: what torch does for a tensor that is no state.
void set_rank_state(const at::Tensor& state);
/// Begins anew from `seed`.
void seed_rank(uint64_t seed);

}  // namespace shardwise
