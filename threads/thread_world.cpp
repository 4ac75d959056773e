#include "threads/thread_world.h"

#include "runtime/api/rank_generator.h"
#include "runtime/comm/error_text.h"
#include "text/check.h"
#include "threads/strict_backend.h"
#include "threads/thread_backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>

namespace shardwise {

struct ThreadHub::RendezvousTable {
  /// The objects through which the members of one group communicate.
  struct Places {
    std::shared_ptr<Rendezvous> rendezvous;
    std::shared_ptr<Mailbox> mailbox;
  };

  RendezvousTable(int64_t n_ranks, std::chrono::milliseconds timeout) {
    if (strict_threads()) communicators = std::make_shared<Communicators>(n_ranks, timeout);
    store->setTimeout(timeout);
    at::Generator shared = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(shared.mutex());
    generator = shared.clone();
  }

  std::mutex mutex;
  std::map<std::vector<int64_t>, Places> by_ranks;
  std::shared_ptr<Communicators> communicators;  // for strict ranks, in place of by_ranks
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  at::Generator generator;  // the initial state; no rank draws from it

  Places of(const std::shared_ptr<Membership>& membership, const std::vector<int64_t>& ranks) {
    const std::lock_guard lock(mutex);
    Places& places = by_ranks[ranks];
    if (!places.rendezvous)
      places = {std::make_shared<Rendezvous>(membership, ranks), std::make_shared<Mailbox>(membership, ranks)};
    return places;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const std::shared_ptr<Membership>& membership,
                                                            int64_t index, const std::vector<int64_t>& ranks) {
    using c10d::ProcessGroup;
    const auto size = static_cast<int64_t>(ranks.size());
    auto group = c10::make_intrusive<ProcessGroup>(store, static_cast<int>(index), static_cast<int>(size));
    if (communicators) {
      group->setBackend(c10::kCPU, ProcessGroup::BackendType::CUSTOM,
                        c10::make_intrusive<StrictBackend>(index, ranks, c10::kCPU, communicators));
    } else {
      const auto places = of(membership, ranks);
      const auto backend = c10::make_intrusive<ThreadBackend>(index, size, places.rendezvous, places.mailbox);
      for (const auto device : {c10::kCPU, c10::kCUDA})
        group->setBackend(device, ProcessGroup::BackendType::CUSTOM, backend);
    }
    group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
    return group;
  }
};

namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return error_text(known);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

template <class E>
void rethrow_if(const std::exception_ptr& error, const std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const E&) {
    throw E({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
  } catch (...) {  // another type matches
  }
}

template <class... Es>
void rethrow_as(const std::exception_ptr& error, const std::string& text) {
  (rethrow_if<Es>(error, text), ...);
  TORCH_CHECK(false, text);
}

}  // namespace

ThreadHub::ThreadHub(int64_t n_ranks, std::chrono::milliseconds timeout) {
  SW_CHECK_VALUE(n_ranks > 0, "[run_ranks] got {} ranks. Use at least 1.", n_ranks);
  membership_ = std::make_shared<Membership>(n_ranks, timeout);
  rendezvous_table_ = std::make_shared<RendezvousTable>(n_ranks, timeout);
  worlds_.resize(n_ranks);
}

std::shared_ptr<World> ThreadHub::world(int64_t rank) {
  SW_CHECK_VALUE(rank >= 0 && rank < size(), "[run_ranks] rank {} does not exist: there are {}. Use a rank in [0, {}).",
                 rank, size(), size());
  const auto make_group = [rank, membership = membership_,
                           table = rendezvous_table_](const std::vector<int64_t>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    return own == ranks.end() ? c10::intrusive_ptr<c10d::ProcessGroup>()
                              : table->make_process_group(membership, own - ranks.begin(), ranks);
  };
  std::vector<int64_t> everyone(size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::lock_guard lock(mutex_);
  set_start_generator(rendezvous_table_->generator);
  // A rank's backward runs in the rank's own thread. Autograd has one thread per GPU, in which one rank's nodes would queue behind nodes
  // that wait for it.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  auto& world = worlds_[rank];
  if (!world) world = std::make_shared<World>(rank, size(), make_group(everyone), make_group);
  return world;
}

bool ThreadHub::abort(int64_t rank, const std::string& reason) {
  const bool is_first = membership_->abort(rank, reason);  // before other ranks are released, which then fail too
  if (rendezvous_table_->communicators) rendezvous_table_->communicators->program().abort(rank, reason);
  return is_first;
}

void ThreadHub::finish(int64_t rank) {
  membership_->finish(rank);
  if (rendezvous_table_->communicators) rendezvous_table_->communicators->program().finish(rank);
}

void run_ranks(int64_t n_ranks, const std::function<void(World&)>& body, std::chrono::milliseconds timeout) {
  ThreadHub hub(n_ranks, timeout);
  int64_t failed_rank = -1;
  std::exception_ptr failure;
  const auto run = [&](int64_t rank) {
    try {
      const auto world = hub.world(rank);
      World::set_thread(world);
      body(*world);
      hub.finish(rank);
    } catch (...) {
      const auto error = std::current_exception();
      if (!hub.abort(rank, text_of(error))) return;
      failed_rank = rank;  // set by the first to abort only, and read after the join
      failure = error;
    }
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n_ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  if (!failure) return;
  rethrow_as<c10::ValueError, c10::IndexError, c10::TypeError, c10::NotImplementedError, c10::OutOfMemoryError,
             c10::DistBackendError>(failure, fmt::format("rank {}: {}", failed_rank, text_of(failure)));
}

}  // namespace shardwise
