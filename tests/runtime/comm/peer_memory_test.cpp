// On three threads, whose messages are no processes' and share nothing, and on processes over Gloo when gloo_main.cpp starts them.
#include "runtime/comm/peer_memory.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"
#include "tests/support/either_world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::peer_memory_test {
namespace {

/// Each rank writes its number to place `rank` of all others' memory, in each of `n_rounds` rounds with new memory.
void expect_written(World& world, PeerMemory& peers, int64_t n_rounds) {
  const Group& group = *everyone(world);
  for (int64_t round = 0; round < n_rounds; ++round) {
    const at::Tensor own = PeerMemory::shared(100'000).zero_();
    const PeerName name = PeerMemory::name_of(own.narrow(0, 50, 10));
    const auto all = all_gather_numbers(group, {name.descriptor, name.number});
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      if (rank == world.rank()) continue;
      const at::Tensor there = peers.memory(rank, {all[rank][0], all[rank][1]});
      EXPECT_EQ(there.sizes(), own.sizes());
      there[world.rank()] = 10 * round + world.rank() + 1;
    }
    have_equal(group, "wait", Facts());
    for (int64_t rank = 0; rank < world.size(); ++rank)
      EXPECT_EQ(own[rank].item<int64_t>(), rank == world.rank() ? 0 : 10 * round + rank + 1);
  }
}

TEST(PeerMemoryTest, RanksOfOneMachineWriteToEachOther) {
  const bool are_processes = World::maybe_current() != nullptr;
  on_ranks([=](World& world) {
    PeerMemory peers(*everyone(world), at::kCPU);
    EXPECT_FALSE(peers.shares(world.rank()));
    EXPECT_EQ(peers.shares_any(), are_processes);
    if (peers.shares_any()) expect_written(world, peers, 3);
  });
}

TEST(PeerMemoryTest, OtherDevicesShareNothing) {
  on_ranks([](World& world) { EXPECT_FALSE(PeerMemory(*everyone(world), at::kMeta).shares_any()); });
}

TEST(PeerMemoryTest, OtherMemoryHasNoName) { EXPECT_EQ(PeerMemory::name_of(at::zeros({3})).descriptor, -1); }

}  // namespace
}  // namespace shardwise::peer_memory_test
