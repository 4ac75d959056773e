// runtime/api/rank_generator.h: the random number generator of a rank that is a thread.
//
// torch has one default generator per process, which ranks that are threads share. Each rank draws from a copy of its own, so that all draw
// the same numbers in any interleaving. Ranks that are processes use torch's generator.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace shardwise {

/// This thread's copy of the state that `shared` had when the ranks were started. It starts anew when the seed of `shared` changes, unless
/// seed_rank() or set_rank_state() was called in this thread. Pre: `shared` is locked.
at::Generator& rank_generator(const at::Generator& shared);

/// From now on, this thread's generator begins as a copy of `start`. That is torch's default generator at the time when the ranks were started: the
/// same for all of them, even if one has drawn plain tensors since.
void set_start_generator(at::Generator start);

/// The state of this thread's generator, in the format of torch.Generator.get_state().
at::Tensor rank_state();
/// Continues from a state. Throws: the error of torch for a tensor that is not a state.
void set_rank_state(const at::Tensor& state);
/// Restarts this thread's generator from `seed`.
void seed_rank(uint64_t seed);

}  // namespace shardwise
