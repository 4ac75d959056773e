#include "runtime/redistribute/packed_messages.h"

#include "runtime/comm/events.h"
#include "runtime/redistribute/execute.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::packed_messages_test {
namespace {

at::Tensor numbers(int64_t sender, int64_t receiver) {
  return at::arange(12).view({3, 4}) + 100 * sender + 10 * receiver;
}

TEST(PackedMessagesTest, PartsOfAnyMemoryAndDtypeArriveInTheirPlaces) {
  run_ranks(3, [](World& world) {
    const int64_t self = world.rank();
    PackedMessages messages(c10::kCPU);
    std::vector<at::Tensor> columns(3), bytes(3);
    std::vector<size_t> apart(3);
    for (int64_t other = 0; other < 3; ++other) {
      if (other == self) continue;
      messages.send(other, numbers(self, other).narrow(1, 1, 2));  // not one run
      messages.send(other, at::empty({0, 4}));                     // left out
      messages.send(other, numbers(self, other).to(at::kByte)[0]);
      messages.send(other, at::complex(at::ones({2}), at::full({2}, static_cast<float>(self))).conj());
      columns[other] = at::zeros({3, 4}, at::kLong);
      bytes[other] = at::zeros({4}, at::kByte);
      messages.receive(other, columns[other].narrow(1, 2, 2));
      messages.receive(other, at::empty({4, 0}));
      messages.receive(other, bytes[other]);
      apart[other] = messages.receive_apart(other, {2}, at::kComplexFloat);
    }
    const CommTrace trace;
    messages.start(*everyone(world));
    messages.finish();
    EXPECT_EQ(trace.total_count(), 1);
    for (int64_t other = 0; other < 3; ++other) {
      if (other == self) continue;
      EXPECT_TRUE(at::equal(columns[other].narrow(1, 2, 2), numbers(other, self).narrow(1, 1, 2)));
      EXPECT_TRUE(columns[other].narrow(1, 0, 2).eq(0).all().item<bool>());
      EXPECT_TRUE(at::equal(bytes[other], numbers(other, self).to(at::kByte)[0]));
      EXPECT_EQ(at::imag(messages.arrived(apart[other]))[1].item<float>(), -static_cast<float>(other));
    }
  });
}

TEST(PackedMessagesTest, OneRunOfElementsNeedsNoBufferUnlessItMayChange) {
  run_ranks(2, [](World& world) {
    const int64_t self = world.rank();
    for (const bool may_change : {false, true}) {
      const at::Tensor sent = at::full({5}, static_cast<double>(self), at::kDouble),
                       place = at::zeros({5}, at::kDouble);
      const MoveCounters before = move_counters();
      {
        PackedMessages messages(c10::kCPU, may_change);
        messages.send(1 - self, sent);
        messages.receive(1 - self, place);
        messages.start(*everyone(world));
        if (may_change) sent.zero_();
        messages.finish();
      }
      const MoveCounters after = move_counters();
      EXPECT_EQ(after.buffer_hits + after.buffer_misses - before.buffer_hits - before.buffer_misses, may_change);
      EXPECT_TRUE(place.eq(static_cast<double>(1 - self)).all().item<bool>());
    }
  });
}

TEST(PackedMessagesTest, WithoutPartsEveryMemberStillTakesPart) {
  run_ranks(2, [](World& world) {
    PackedMessages messages(c10::kCPU);
    messages.start(*everyone(world));
    messages.finish();
  });
}

}  // namespace
}  // namespace shardwise::packed_messages_test
