#include "runtime/api/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace shardwise {
namespace {

struct RankGenerator {
  at::Generator generator;
  bool is_governed = false;  // the rank has set it
};

RankGenerator& of_thread() {
  thread_local RankGenerator own;
  return own;
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
  if (!own.generator.defined() || (!own.is_governed && own.generator.current_seed() != shared.current_seed()))
    own.generator = shared.clone();
  return own.generator;
}

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
