#include "threads/thread_world.h"

#include "runtime/api/rank_generator.h"
#include "runtime/comm/agreement.h"
#include "text/check.h"
#include "threads/thread_backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <numeric>
#include <thread>

namespace shardwise {

struct ThreadHub::Shared {
  Shared(int64_t n_ranks, std::chrono::milliseconds timeout)
      : communicators(std::make_shared<Communicators>(n_ranks, timeout, strict_threads())) {
    store->setTimeout(timeout);
    at::Generator shared = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(shared.mutex());
    generator = shared.clone();
  }

  std::shared_ptr<Communicators> communicators;
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  at::Generator generator;  // the initial state; no rank draws from it

  ThreadRanks& program() const { return communicators->program(); }

  c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(int64_t index, const std::vector<int64_t>& ranks) {
    using c10d::ProcessGroup;
    auto group = c10::make_intrusive<ProcessGroup>(store, static_cast<int>(index), static_cast<int>(ranks.size()));
    const auto backend = c10::make_intrusive<ThreadBackend>(index, ranks, communicators);
    group->setBackend(c10::kCPU, ProcessGroup::BackendType::CUSTOM, backend);
    if (!program().is_strict()) group->setBackend(c10::kCUDA, ProcessGroup::BackendType::CUSTOM, backend);
    group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
    return group;
  }
};

ThreadHub::ThreadHub(int64_t n_ranks, std::chrono::milliseconds timeout) {
  SW_CHECK_VALUE(n_ranks > 0, "[run_ranks] got {} ranks. Use at least 1.", n_ranks);
  shared_ = std::make_shared<Shared>(n_ranks, timeout);
  worlds_.resize(n_ranks);
}

std::shared_ptr<World> ThreadHub::world(int64_t rank) {
  SW_CHECK_VALUE(rank >= 0 && rank < size(), "[run_ranks] rank {} does not exist: there are {}. Use a rank in [0, {}).",
                 rank, size(), size());
  const auto make_group = [rank, shared = shared_](const std::vector<int64_t>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    return own == ranks.end() ? c10::intrusive_ptr<c10d::ProcessGroup>()
                              : shared->make_process_group(own - ranks.begin(), ranks);
  };
  std::vector<int64_t> everyone(size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::lock_guard lock(mutex_);
  set_start_generator(shared_->generator);
  // A rank's backward runs in the rank's own thread. Autograd has one thread per GPU, in which one rank's nodes would queue behind nodes
  // that wait for it.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  auto& world = worlds_[rank];
  if (!world) world = std::make_shared<World>(rank, size(), make_group(everyone), make_group);
  return world;
}

bool ThreadHub::abort(int64_t rank, const std::string& reason) { return shared_->program().abort(rank, reason); }

void ThreadHub::finish(int64_t rank) { shared_->program().finish(rank); }

void run_ranks(int64_t n_ranks, const std::function<void(World&)>& body, std::chrono::milliseconds timeout) {
  ThreadHub hub(n_ranks, timeout);
  RankError failure;
  const auto run = [&](int64_t rank) {
    try {
      const auto world = hub.world(rank);
      World::set_thread(world);
      body(*world);
      hub.finish(rank);
    } catch (...) {
      const RankError error = RankError::current();
      if (hub.abort(rank, error.text))  // set by the first to abort only, and read after the join
        failure = {error.type, fmt::format("rank {}: {}", rank, error.text)};
    }
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n_ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  failure.raise();
}

}  // namespace shardwise
