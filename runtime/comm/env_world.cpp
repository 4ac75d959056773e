#include "runtime/comm/env_world.h"

#include "text/check.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>

#ifdef SHARDWISE_HAS_GLOO
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef SHARDWISE_HAS_NCCL
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace shardwise {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using c10d::ProcessGroup;

std::string text_variable(const char* name) {
  const char* const value = std::getenv(name);
  SW_CHECK_VALUE(value != nullptr && *value != '\0',
                 "[init_from_env] the environment variable {} is not set. Start the program with torchrun --no-python, "
                 "or call single_world() in a program of one process.",
                 name);
  return value;
}

int64_t number_variable(const char* name, int64_t begin, int64_t end) {
  const std::string text = text_variable(name);
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  SW_CHECK_VALUE(
      error == std::errc() && stop == text.data() + text.size() && number >= begin && number < end,
      "[init_from_env] the environment variable {} is \"{}\". Give it a number in [{}, {}), as torchrun does.", name,
      text, begin, end);
  return number;
}

/// Under torchrun the agent serves the store and keeps it over restarts, as the environment says. Otherwise rank 0 serves it.
StorePtr connect(int64_t rank, int64_t n_ranks, std::chrono::milliseconds timeout) {
  const char* const agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool is_agents = agent != nullptr && std::string(agent) == "True";
  const char* const attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number_variable("MASTER_PORT", 1, 65536));
  options.isServer = rank == 0 && !is_agents;
  options.numWorkers = n_ranks;
  options.waitWorkers = false;
  options.timeout = timeout;
  const auto store = c10::make_intrusive<c10d::TCPStore>(text_variable("MASTER_ADDR"), options);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("shardwise/{}", attempt ? attempt : "0"), store);
}

#ifdef SHARDWISE_HAS_GLOO
c10::intrusive_ptr<ProcessGroup> make_process_group(const StorePtr& store, int64_t index, int64_t size,
                                                    std::chrono::milliseconds timeout) {
  const int i = static_cast<int>(index);
  const int n = static_cast<int>(size);
  auto group = c10::make_intrusive<ProcessGroup>(store, i, n);
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, i, n, c10d::ProcessGroupGloo::Options::create_default(timeout));
  group->setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
#ifdef SHARDWISE_HAS_NCCL
  if (c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0) return group;
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  const auto nccl_store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  const auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(nccl_store, i, n, options);
  group->setBackend(c10::kCUDA, ProcessGroup::BackendType::NCCL, nccl);
#endif
  return group;
}
#else
c10::intrusive_ptr<ProcessGroup> make_process_group(const StorePtr&, int64_t, int64_t, std::chrono::milliseconds) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[init_from_env] this build has no Gloo. Install its headers (libgloo-dev) and build again.");
}
#endif

std::shared_ptr<World> set_process(std::shared_ptr<World> world) {
  World::set_process(world);
  return world;
}

}  // namespace

std::shared_ptr<World> init_from_env(std::chrono::milliseconds timeout) {
  const int64_t n_ranks = number_variable("WORLD_SIZE", 1, std::numeric_limits<int>::max());
  const int64_t rank = number_variable("RANK", 0, n_ranks);
  if (n_ranks == 1) return single_world();
  const StorePtr store = connect(rank, n_ranks, timeout);
  // Only the members create the group, in a store prefix made of their ranks.
  const auto make_group = [=](const std::vector<int64_t>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    if (own == ranks.end()) return c10::intrusive_ptr<ProcessGroup>();
    const auto prefix = c10::make_intrusive<c10d::PrefixStore>(fmt::format("group/{}", fmt::join(ranks, ",")), store);
    return make_process_group(prefix, own - ranks.begin(), static_cast<int64_t>(ranks.size()), timeout);
  };
  std::vector<int64_t> everyone(n_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  return set_process(std::make_shared<World>(rank, n_ranks, make_group(everyone), make_group));
}

std::shared_ptr<World> single_world() { return set_process(std::make_shared<World>(0, 1, nullptr, nullptr)); }

}  // namespace shardwise
