#include "runtime/api/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <utility>

namespace shardwise {
namespace {

struct RankGenerator {
  at::Generator start;  // the generator it is a copy of
  at::Generator generator;
  bool is_governed = false;  // the rank has seeded it or set its state
};

RankGenerator& of_thread() {
  thread_local RankGenerator own;
  return own;
}

/// Undefined in threads that are no ranks.
at::Generator& start_of_thread() {
  thread_local at::Generator start;
  return start;
}

/// Calls `use` with this thread's generator.
template <class Use>
auto with_generator(const Use& use) {
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(shared.mutex());
  return use(rank_generator(shared));
}

}  // namespace

at::Generator& rank_generator(const at::Generator& shared) {
  RankGenerator& own = of_thread();
  const at::Generator& start = start_of_thread();
  if (!own.generator.defined() || own.start != start) own = {start, (start.defined() ? start : shared).clone()};
  // Seeded, not copied: other ranks may have drawn plain tensors since the seed was set.
  if (const uint64_t seed = shared.current_seed(); !own.is_governed && own.generator.current_seed() != seed)
    own.generator = at::detail::createCPUGenerator(seed);
  return own.generator;
}

void set_start_generator(at::Generator start) { start_of_thread() = std::move(start); }

at::Tensor rank_state() {
  return with_generator([](const at::Generator& own) { return own.get_state(); });
}

void set_rank_state(const at::Tensor& state) {
  with_generator([&](at::Generator& own) { own.set_state(state); });
  of_thread().is_governed = true;
}

void seed_rank(uint64_t seed) {
  with_generator([&](at::Generator& own) { own.set_current_seed(seed); });
  of_thread().is_governed = true;
}

}  // namespace shardwise
