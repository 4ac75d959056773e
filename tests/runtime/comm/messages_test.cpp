// On three threads, and on processes over Gloo when gloo_main.cpp starts them; MailboxTest is of threads alone.
#include "runtime/comm/messages.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/events.h"
#include "runtime/comm/order_check.h"
#include "tests/support/either_world.h"
#include "tests/support/strict_threads.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace shardwise::messages_test {
namespace {

using Sent = std::vector<Message>;

/// `n` elements that say who sends to whom.
at::Tensor letter(int64_t from, int64_t to, int64_t n, at::ScalarType dtype = at::kFloat) {
  return (at::arange(n, at::kDouble) + 10 * from + to).to(dtype);
}

at::Tensor room(int64_t n, at::ScalarType dtype = at::kFloat) { return at::zeros({n}, dtype); }

/// Sends n_elements(from, to) elements, none where that is 0, between all pairs at once and checks what came.
void expect_exchanged(World& world, at::ScalarType dtype, const std::function<int64_t(int64_t, int64_t)>& n_elements) {
  Sent sends, receives;
  for (int64_t other = 0; other < world.size(); ++other) {
    if (other == world.rank()) continue;
    if (const int64_t n = n_elements(world.rank(), other))
      sends.push_back({other, letter(world.rank(), other, n, dtype)});
    if (const int64_t n = n_elements(other, world.rank())) receives.push_back({other, room(n, dtype)});
  }
  exchange(*everyone(world), at::kCPU, sends, receives)->wait();
  for (const auto& [from, tensor, fill, n_there] : receives)
    EXPECT_TRUE(tensor.view(at::kByte).equal(letter(from, world.rank(), tensor.numel(), dtype).view(at::kByte)))
        << at::toString(dtype) << " from " << from;
}

TEST(MessagesTest, MovesUnevenTensorsOfAnyDtype) {
  on_ranks([](World& world) {
    for (const auto dtype : {at::kBool, at::kByte, at::kShort, at::kUInt16, at::kInt, at::kLong, at::kUInt64, at::kHalf,
                             at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kComplexFloat})
      expect_exchanged(world, dtype, [](int64_t from, int64_t to) { return (from + 2 * to) % 4; });
    expect_exchanged(world, at::kDouble, [](int64_t from, int64_t) { return from == 1 ? 300'000 : 1; });
  });
}

TEST(MessagesTest, RankWithoutMessagesCountsNone) {
  on_ranks([](World& world) {
    const CommTrace trace;
    expect_exchanged(world, at::kFloat, [](int64_t, int64_t) { return 0; });
    EXPECT_EQ(trace.total_count(), 0);
    expect_exchanged(world, at::kFloat, [](int64_t from, int64_t to) { return from == 0 && to == 1 ? 3 : 0; });
    EXPECT_EQ(trace.total_count(), world.rank() == 2 ? 0 : 1);
    EXPECT_EQ(trace.bytes_sent(), world.rank() == 0 ? 12 : 0);
    EXPECT_EQ(trace.bytes_received(), world.rank() == 1 ? 12 : 0);
  });
}

TEST(MessagesTest, CountsOneAllToAllOfItsBytes) {
  on_ranks([](World& world) {
    const CommTrace trace;
    const CommScope scope("redistribute", CommScope::Cause::kProgram);
    expect_exchanged(world, at::kDouble, [](int64_t from, int64_t) { return from + 1; });
    ASSERT_EQ(trace.total_count(), 1);
    EXPECT_EQ(trace.events()[0].collective, "all_to_all");
    EXPECT_EQ(trace.events()[0].op, "redistribute");
    EXPECT_EQ(trace.events()[0].n_ranks, 3);
    EXPECT_EQ(trace.bytes_sent(), 8 * 2 * (world.rank() + 1));
    EXPECT_EQ(trace.bytes_received(), 8 * (6 - (world.rank() + 1)));
  });
}

TEST(MessagesTest, SeveralOfOnePairMatchInOrder) {
  on_ranks([](World& world) {
    const int64_t next = (world.rank() + 1) % 3;
    const int64_t previous = (world.rank() + 2) % 3;
    Sent sends, receives;
    for (const int64_t n : {4, 1, 4, 2}) {
      sends.push_back({next, letter(world.rank(), n, n)});
      sends.push_back({previous, letter(world.rank(), 5 + n, n)});
      receives.push_back({previous, room(n)});
    }
    for (const int64_t n : {4, 1, 4, 2}) receives.push_back({next, room(n)});
    exchange(*everyone(world), at::kCPU, sends, receives)->wait();
    for (size_t i = 0; i < 8; ++i) {
      const int64_t n = receives[i].tensor.numel();
      EXPECT_TRUE(receives[i].tensor.equal(i < 4 ? letter(previous, n, n) : letter(next, 5 + n, n))) << i;
    }
  });
}

TEST(MessagesTest, StartingWaitsForNobody) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    const at::Tensor first = room(2);
    const at::Tensor second = room(2);
    const int64_t next = (world.rank() + 1) % 3;
    const int64_t previous = (world.rank() + 2) % 3;
    const auto earlier = exchange(*group, at::kCPU, {{next, letter(world.rank(), 1, 2)}}, {{previous, first}});
    const auto later = exchange(*group, at::kCPU, {{next, letter(world.rank(), 2, 2)}}, {{previous, second}});
    EXPECT_EQ(all_gather_numbers(*group, {world.rank()})[2][0], 2);  // meanwhile
    later->wait();
    earlier->wait();
    EXPECT_TRUE(first.equal(letter(previous, 1, 2)));
    EXPECT_TRUE(second.equal(letter(previous, 2, 2)));
  });
}

TEST(MessagesTest, RankWithoutAnyIsNeededOnce) {
  on_ranks([](World& world) {
    const GroupPtr group = world.group({0, 1, 2});
    const at::Tensor got = room(2);
    const auto from_0_to_1 = [&](bool by_all) {
      if (!by_all && world.rank() == 2) return;
      exchange(*group, at::kCPU, world.rank() == 0 ? Sent{{1, letter(0, 1, 2)}} : Sent{},
               world.rank() == 1 ? Sent{{0, got}} : Sent{}, by_all)
          ->wait();
      EXPECT_TRUE(world.rank() != 1 || got.equal(letter(0, 1, 2)));
    };
    from_0_to_1(true);
    from_0_to_1(false);  // rank 2 stays away
    all_gather_numbers(*group, {});
  });
}

TEST(MessagesTest, WaitingTwiceWaitsOnce) {
  on_ranks([](World& world) {
    const at::Tensor got = room(2);
    const auto messages = exchange(*everyone(world), at::kCPU, {{(world.rank() + 1) % 3, letter(world.rank(), 0, 2)}},
                                   {{(world.rank() + 2) % 3, got}});
    messages->wait();
    got.fill_(-1);
    messages->wait();
    EXPECT_TRUE(got.eq(-1).all().item<bool>());
  });
}

TEST(MessagesTest, DroppedMessagesHaveArrived) {
  on_ranks([](World& world) {
    const int64_t previous = (world.rank() + 2) % 3;
    const at::Tensor got = room(2);
    exchange(*everyone(world), at::kCPU, {{(world.rank() + 1) % 3, letter(world.rank(), 0, 2)}}, {{previous, got}});
    EXPECT_TRUE(got.equal(letter(previous, 0, 2)));
  });
}

TEST(MessagesTest, ViewsScalarsAndLeavesTravel) {
  on_ranks([](World& world) {
    const int64_t next = (world.rank() + 1) % 3;
    const int64_t previous = (world.rank() + 2) % 3;
    const at::Tensor table = at::zeros({3, 2}).requires_grad_();
    const at::Tensor rows = table.detach()[1];
    const at::Tensor leaf = at::full({}, world.rank(), at::kFloat).requires_grad_();
    exchange(*everyone(world), at::kCPU, {{next, leaf}, {next, letter(world.rank(), 0, 2)}},
             {{previous, table[0][0]}, {previous, rows}})
        ->wait();
    EXPECT_EQ(table[0][0].item<float>(), static_cast<float>(previous));
    EXPECT_TRUE(table.detach()[1].equal(letter(previous, 0, 2)));
    EXPECT_TRUE(table.is_leaf());
  });
}

TEST(MessagesTest, RanksAreGlobalInSubgroups) {
  on_ranks([](World& world) {
    const GroupPtr group = world.group({2, 0});
    if (!group) return;
    const int64_t other = 2 - world.rank();
    const at::Tensor got = room(3);
    exchange(*group, at::kCPU, {{other, letter(world.rank(), other, 3)}}, {{other, got}})->wait();
    EXPECT_TRUE(got.equal(letter(other, world.rank(), 3)));
  });
}

TEST(MessagesTest, MisfitsAreNamedBeforeAnyMessage) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    const int64_t other = (world.rank() + 1) % 3;
    const auto error = [&](const Sent& sends, const Sent& receives) {
      return error_of<c10::ValueError>([&] { exchange(*group, at::kCPU, sends, receives); });
    };
    expect_error("is empty, of shape [0, 2]. Leave it out", error({{other, at::ones({0, 2})}}, {}));
    expect_error(fmt::format("the message from rank {} is empty", other), error({}, {{other, room(0)}}));
    expect_error("which is not contiguous", error({{other, at::ones({2, 3}).t()}}, {}));
    expect_error(fmt::format("rank {} has a message to itself", world.rank()), error({{world.rank(), room(1)}}, {}));
    expect_error("rank 3 is not a member", error({{other, room(1)}}, {{3, room(1)}}));
    expect_error("is on meta, but the exchange is of cpu tensors",
                 error({{other, room(1)}}, {{other, at::empty({1}, at::kMeta)}}));
  });
}

TEST(MessagesTest, GroupOfOneHasNone) {
  const Group one{nullptr, {0}, 0};
  exchange(one, at::kCPU, {}, {})->wait();
  expect_error("rank 0 has a message from itself",
               error_of<c10::ValueError>([&] { exchange(one, at::kCPU, {}, {{0, room(1)}}); }));
}

/// Without the order check, which would speak first, and over mailboxes, which strict threads have none of.
class MailboxTest : public testing::Test {
 public:
  MailboxTest() : was_checked_(set_order_check(false)), relaxed_(false) {}
  ~MailboxTest() override { set_order_check(was_checked_); }

 private:
  bool was_checked_;
  StrictThreads relaxed_;
};

TEST_F(MailboxTest, SizesThatDifferAreNamed) {
  expect_error("[receive] rank 0 sends 12 Byte to rank 1, which expects 8 Byte of another call.",
               error_of_ranks(2, [](World& world) {
                 if (world.rank() == 0)
                   exchange(*everyone(world), at::kCPU, {{1, room(3)}}, {});
                 else
                   exchange(*everyone(world), at::kCPU, {}, {{0, room(2)}})->wait();
               }));
}

TEST_F(MailboxTest, FailedRankReleasesReceivers) {
  const auto errors = on_each_rank(1, [](World&) {
    std::string of_receiver;
    const std::string of_run = error_of_ranks(3, [&](World& world) {
      TORCH_CHECK(world.rank() != 2, "out of luck");
      if (world.rank() == 1)
        of_receiver = error_of<c10::DistBackendError>([&] {
          exchange(*everyone(world), at::kCPU, {}, {{0, room(1)}})->wait();
        });  // 0 is well, but the program is not
      else
        error_of<c10::DistBackendError>([&] { all_gather_numbers(*everyone(world), {}); });
    });
    return of_run + "; " + of_receiver;
  });
  expect_error("out of luck; [receive] rank 1 was waiting, but rank 2 failed: out of luck", errors[0]);
}

TEST_F(MailboxTest, FinishedAndLateRanksAreNamed) {
  expect_error("[receive] rank 1 was waiting, but rank 0 has finished and cannot take part",
               error_of_ranks(2, [](World& world) {
                 if (world.rank() == 1) exchange(*everyone(world), at::kCPU, {}, {{0, room(1)}})->wait();
               }));
  expect_error("rank 0 was waiting, but rank 1 did not send within 50 ms",
               error_of_ranks(
                   2,
                   [](World& world) {
                     const int64_t other = 1 - world.rank();
                     if (world.rank() == 0)
                       exchange(*everyone(world), at::kCPU, {}, {{other, room(1)}})->wait();
                     else
                       std::this_thread::sleep_for(std::chrono::milliseconds(400));
                   },
                   std::chrono::milliseconds(50)));
}

TEST_F(MailboxTest, NobodySendsToOneWhoHasFinished) {
  expect_error("[send] rank 0 was about to send, but rank 1 has finished", error_of_ranks(2, [](World& world) {
                 if (world.rank() == 1) return;
                 std::this_thread::sleep_for(std::chrono::milliseconds(100));
                 exchange(*everyone(world), at::kCPU, {{1, room(1)}}, {});
               }));
}

TEST_F(MailboxTest, SentBeforeTheSenderFinishedStillArrives) {
  run_ranks(2, [](World& world) {
    const at::Tensor got = room(2);
    const auto messages = world.rank() == 0 ? exchange(*everyone(world), at::kCPU, {{1, letter(0, 1, 2)}}, {})
                                            : exchange(*everyone(world), at::kCPU, {}, {{0, got}});
    if (world.rank() == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    messages->wait();
    EXPECT_TRUE(got.equal(letter(0, 1, 2)));
  });
}

TEST_F(MailboxTest, AMessageOfAnotherCallIsNeverReceived) {
  expect_error(
      "[receive] rank 0 sends 8 Byte for aten::select to rank 1, which expects 8 Byte for aten::embedding of another "
      "call. "
      "All ranks of a group must make the same calls in the same order.",
      error_of_ranks(2, [](World& world) {
        const GroupPtr group = everyone(world);
        if (world.rank() == 0) {
          const CommScope alone("aten::select");
          exchange(*group, at::kCPU, {{1, letter(0, 1, 2)}}, {})->wait();
        }
        const CommScope scope("aten::embedding");
        const at::Tensor got = room(2);
        exchange(*group, at::kCPU, world.rank() == 0 ? Sent{{1, letter(0, 2, 2)}} : Sent{},
                 world.rank() == 1 ? Sent{{0, got}} : Sent{})
            ->wait();
        EXPECT_TRUE(world.rank() == 0 || got.eq(0).all().item<bool>()) << "no value of another call";
      }));
}

TEST_F(MailboxTest, UnwindingLetsGoOfItsReceive) {
  run_ranks(2, [](World& world) {
    const GroupPtr group = everyone(world);
    const at::Tensor got = room(2);
    try {
      const auto lost = exchange(*group, at::kCPU, {}, world.rank() == 0 ? Sent{} : Sent{{0, got}});  // nobody sends
      throw std::runtime_error("something else");
    } catch (const std::runtime_error&) {
      all_gather_numbers(*group, {});
    }
    exchange(*group, at::kCPU, world.rank() == 0 ? Sent{{1, letter(0, 1, 2)}} : Sent{},
             world.rank() == 0 ? Sent{} : Sent{{0, got}})
        ->wait();
    EXPECT_TRUE(world.rank() == 0 || got.equal(letter(0, 1, 2))) << "of its own call";
  });
}

}  // namespace
}  // namespace shardwise::messages_test
