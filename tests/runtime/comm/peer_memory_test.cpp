// On three threads, whose messages are no processes' and share nothing, and on processes over Gloo when gloo_main.cpp starts them.
#include "runtime/comm/peer_memory.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"
#include "tests/support/either_world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace shardwise::peer_memory_test {
namespace {

constexpr int64_t kMiB = 1 << 20;

int64_t n_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

/// Each rank writes its number to place `rank` of all others' memory, in each of `n_rounds` rounds with new memory, which is zeros at first.
void expect_written(World& world, const PeerMemory& peers, int64_t n_rounds) {
  const Group& group = *everyone(world);
  for (int64_t round = 0; round < n_rounds; ++round) {
    const at::Tensor own = peers.take(100'000);
    EXPECT_FALSE(own.any().item<bool>());
    const auto names = all_gather_numbers(group, {peers.name_of(own.narrow(0, 50, 10))});
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      if (rank == world.rank()) continue;
      const at::Tensor there = peers.place(rank, names[rank][0], 10, 50);
      EXPECT_EQ(there.sizes(), c10::IntArrayRef({50}));
      there[world.rank()] = 10 * round + world.rank() + 1;
    }
    have_equal(group, "wait", Facts());
    for (int64_t rank = 0; rank < world.size(); ++rank)
      EXPECT_EQ(own[10 + rank].item<int64_t>(), rank == world.rank() ? 0 : 10 * round + rank + 1);
  }
}

TEST(PeerMemoryTest, RanksOfOneMachineWriteToEachOther) {
  const bool are_processes = World::maybe_current() != nullptr;
  on_ranks([=](World& world) {
    const int64_t n_files = n_open_files();
    const PeerMemory peers(*everyone(world), at::kCPU);
    EXPECT_FALSE(peers.shares(world.rank()));
    EXPECT_EQ(peers.shares_any(), are_processes);
    if (!are_processes) return;
    expect_written(world, peers, 3);
    EXPECT_EQ(n_open_files(), n_files);
  });
}

TEST(PeerMemoryTest, BlocksAreReused) {
  on_ranks([](World& world) {
    const PeerMemory peers(*everyone(world), at::kCPU, kMiB);
    if (!peers.shares_any()) return;
    std::vector<at::Tensor> blocks;
    for (int64_t n = 0; n < 15; ++n) blocks.push_back(peers.take(50'000).fill_(n));  // a unit each; one has the mark
    EXPECT_FALSE(peers.take(1).defined());
    EXPECT_EQ(peers.name_of(blocks[3]), 4);
    for (const size_t dropped : {3, 5, 4}) blocks[dropped].reset();
    EXPECT_FALSE(peers.take(4 * kMiB / 16).defined());
    const at::Tensor three = peers.take(3 * kMiB / 16);
    EXPECT_EQ(peers.name_of(three), 4);
    EXPECT_FALSE(three.any().item<bool>());
    EXPECT_EQ(blocks[6][49'999].item<int64_t>(), 6);
  });
}

TEST(PeerMemoryTest, BlocksOutliveTheArena) {
  on_ranks([](World& world) {
    std::optional<PeerMemory> peers(std::in_place, *everyone(world), at::kCPU, kMiB);
    if (!peers->shares_any()) return;
    const at::Tensor block = peers->take(10);
    peers.reset();
    EXPECT_EQ(block.fill_(3).sum().item<int64_t>(), 30);
  });
}

TEST(PeerMemoryTest, WritesStayInTheArena) {
  on_ranks([](World& world) {
    const PeerMemory peers(*everyone(world), at::kCPU, kMiB);
    const int64_t other = world.rank() == 0 ? 1 : 0;
    if (!peers.shares(other)) return;
    EXPECT_EQ(peers.place(other, 15, 0, kMiB / 16).numel(), kMiB / 16);
    for (const auto& [name, begin, n_bytes] : std::vector<std::array<int64_t, 3>>{
             {15, 1, kMiB / 16}, {16, 0, 1}, {-1, 0, 1}, {0, 0, 8}, {1, -1, 1}, {1, 0, INT64_MAX}, {1, INT64_MAX, 1}})
      EXPECT_TRUE(error_of<c10::Error>([&] {
                    peers.place(other, name, begin, n_bytes);
                  }).find(" do not lie in the 1048576 bytes that member ") != std::string::npos);
  });
}

TEST(PeerMemoryTest, OtherDevicesShareNothing) {
  on_ranks([](World& world) {
    const PeerMemory peers(*everyone(world), at::kMeta);
    EXPECT_FALSE(peers.shares_any());
    EXPECT_FALSE(peers.take(3).defined());
    EXPECT_EQ(peers.name_of(at::zeros({3})), -1);
  });
}

}  // namespace
}  // namespace shardwise::peer_memory_test
