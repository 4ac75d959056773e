#include "threads/thread_backend.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"
#include "tests/support/either_world.h"
#include "tests/support/strict_threads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace shardwise::strict_backend_test {
namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class StrictBackendTest : public testing::Test {
 private:
  StrictThreads strict_{true};
};

c10::intrusive_ptr<c10d::Backend> backend(World& world) {
  return everyone(world)->process_group->getBackend(c10::kCPU);
}

WorkPtr reduce(World& world, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return backend(world)->allreduce(tensors, options);
}

WorkPtr send(World& world, int64_t to, const at::Tensor& tensor) {
  Tensors tensors{tensor};
  return backend(world)->send(tensors, static_cast<int>(to), 0);
}

WorkPtr receive(World& world, int64_t from, const at::Tensor& tensor) {
  Tensors tensors{tensor};
  return backend(world)->recv(tensors, static_cast<int>(from), 0);
}

/// What `calls` send and receive, in one launch.
WorkPtr grouped(World& world, const std::function<void()>& calls) {
  backend(world)->startCoalescing();
  calls();
  return backend(world)->endCoalescing();
}

void reduce_ones(World& world, std::vector<int64_t> ranks) {
  all_reduce(*world.group(ranks), at::ones({1}), Reduce::kSum);
}

TEST_F(StrictBackendTest, IsChosenForTheRanksThatStartWhileItIsOn) {
  run_ranks(2, [](World& world) { EXPECT_EQ(backend(world)->getBackendName(), "threads-strict"); });
  const StrictThreads relaxed(false);
  run_ranks(2, [](World& world) { EXPECT_EQ(backend(world)->getBackendName(), "threads"); });
}

TEST_F(StrictBackendTest, FirstCallNeedsEveryMember) {
  expect_error(
      "was waiting, but rank 2 has finished and cannot take part. All ranks of the group [0, 1, 2] must call it.",
      error_of_ranks(3, [](World& world) {
        const at::Tensor tensor = at::ones({1});
        if (world.rank() == 0) grouped(world, [&] { receive(world, 1, tensor); })->wait();
        if (world.rank() == 1) grouped(world, [&] { send(world, 0, tensor); })->wait();
      }));
  expect_error("was waiting, but ranks [2] did not come within 50 ms",
               error_of_ranks(
                   3,
                   [](World& world) {
                     if (world.rank() == 2)
                       std::this_thread::sleep_for(milliseconds(400));
                     else
                       reduce(world, at::ones({1}))->wait();
                   },
                   milliseconds(50)));
}

TEST_F(StrictBackendTest, LaterMessagesNeedTheirTwoEndsAlone) {
  run_ranks(3, [](World& world) {
    reduce(world, at::ones({1}))->wait();
    const at::Tensor got = at::zeros({2});
    if (world.rank() == 0) grouped(world, [&] { send(world, 1, at::full({2}, 7.F)); })->wait();
    if (world.rank() == 1) grouped(world, [&] { receive(world, 0, got); })->wait();
    EXPECT_EQ(got[1].item<float>(), world.rank() == 1 ? 7.F : 0.F);
    EXPECT_EQ(grouped(world, [] {}), nullptr);
  });
}

TEST_F(StrictBackendTest, RanksThatBeginWithDifferentGroupsAreNamed) {
  const std::string error = error_of_ranks(3, [](World& world) {
    if (world.rank() == 0) reduce_ones(world, {0, 1});
    if (world.rank() == 1) reduce_ones(world, {1, 2});
    if (world.rank() == 2) reduce_ones(world, {0, 2});
  });
  expect_error("was waiting, but the ranks wait for each other: rank ", error);
  for (const char* part : {"rank 0 is in all_reduce (sum of 1 Float) of ranks [0, 1]",
                           "rank 1 is in all_reduce (sum of 1 Float) of ranks [1, 2]",
                           "rank 2 is in all_reduce (sum of 1 Float) of ranks [0, 2]"})
    expect_error(part, error);
}

TEST_F(StrictBackendTest, SequencesThatDifferAreNamedOnAllRanks) {
  // what ranks 0 and 1 call
  const auto sum = [](World& world) { return reduce(world, at::ones({3})); };
  const auto max = [](World& world) { return reduce(world, at::ones({3}), c10d::ReduceOp::MAX); };
  const auto halves = [](World& world) { return reduce(world, at::ones({3}, at::kHalf)); };
  const auto from = [](int64_t root) {
    return [root](World& world) {
      Tensors tensors{at::ones({3})};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return backend(world)->broadcast(tensors, options);
    };
  };
  const std::vector<std::tuple<std::function<WorkPtr(World&)>, std::function<WorkPtr(World&)>, std::string>> cases{
      {sum, max, "calls all_reduce (sum of 3 Float), but rank 1 calls all_reduce (max of 3 Float)"},
      {sum, halves, "calls all_reduce (sum of 3 Float), but rank 1 calls all_reduce (sum of 3 Half)"},
      {sum, from(0), "calls all_reduce (sum of 3 Float), but rank 1 calls broadcast (3 Float from 0)"},
      {from(1), from(0), "calls broadcast (3 Float from 1), but rank 1 calls broadcast (3 Float from 0)"}};
  for (const auto& [first, second, words] : cases)
    run_ranks(2, [&](World& world) {
      const auto work = world.rank() == 0 ? first(world) : second(world);
      expect_error("rank 0 " + words, error_of<c10::ValueError>([&] { work->wait(); }));
    });
}

TEST_F(StrictBackendTest, WhatNcclLacksIsAnError) {
  const auto error = [](const std::function<void(World&)>& call) { return error_of_ranks(2, call); };
  const auto reduce_ints = [&](c10d::ReduceOp::RedOpType op) {
    return error([op](World& world) { reduce(world, at::ones({2}, at::kLong), op)->wait(); });
  };
  expect_error("NCCL has no avg of 2 Long", reduce_ints(c10d::ReduceOp::AVG));
  expect_error("NCCL has no bitwise xor of 2 Long", reduce_ints(c10d::ReduceOp::BXOR));
  expect_error("NCCL has no sum of 2 Short",
               error([](World& world) { reduce(world, at::ones({2}, at::kShort))->wait(); }));
  expect_error("[all_reduce] got a tensor of shape [2, 3] and strides [1, 2], which is not contiguous",
               error([](World& world) { reduce(world, at::ones({3, 2}).t())->wait(); }));
  expect_error("[all_reduce] got a tensor on meta, but the backend of ranks [0, 1] serves cpu tensors",
               error([](World& world) { reduce(world, at::ones({2}, at::kMeta))->wait(); }));
  expect_error("[all_gather] an output of 3 elements does not hold 2 parts of", error([](World& world) {
                 at::Tensor output = at::ones({3});
                 at::Tensor input = at::ones({1 + world.rank()});
                 backend(world)->_allgather_base(output, input)->wait();
               }));
  expect_error("[all_reduce] cannot be grouped with sends and receives",
               error([](World& world) { grouped(world, [&] { reduce(world, at::ones({1})); }); }));
}

TEST_F(StrictBackendTest, CollectivesOfNoElementsStillNeedAll) {
  run_ranks(2, [](World& world) { reduce(world, at::ones({0}))->wait(); });
  expect_error("rank 1 has finished", error_of_ranks(2, [](World& world) {
                 if (world.rank() == 0) reduce(world, at::ones({0}))->wait();
               }));
}

TEST_F(StrictBackendTest, OutputsHoldGarbageUntilTheyAreWaitedFor) {
  run_ranks(2, [](World& world) {
    const at::Tensor sum = at::ones({2});
    at::Tensor gathered = at::zeros({2}), own = at::ones({1});
    const auto reducing = reduce(world, sum);
    const auto gathering = backend(world)->_allgather_base(gathered, own);
    EXPECT_LT(sum[0].item<float>(), -1e30F);
    EXPECT_LT(gathered[1].item<float>(), -1e30F);
    gathering->wait();
    reducing->wait();
    EXPECT_TRUE(sum.eq(2).all().item<bool>());
    EXPECT_TRUE(gathered.eq(1).all().item<bool>());
  });
}

TEST_F(StrictBackendTest, WritesBeforeTheWaitAreNamed) {
  const std::string error = error_of_ranks(2, [](World& world) {
    at::Tensor gathered = at::zeros({2}), own = at::ones({1});
    const auto work = backend(world)->_allgather_base(gathered, own);
    own.fill_(3);
    work->wait();
  });
  for (const char* part : {"[all_gather] an input of rank ", " was written to between the call and its wait(): "})
    expect_error(part, error);
  expect_error("[all_reduce] an output of rank ", error_of_ranks(2, [](World& world) {
                 const at::Tensor tensor = at::ones({1});
                 const auto work = reduce(world, tensor);
                 tensor.fill_(3);
                 work->wait();
               }));
}

TEST_F(StrictBackendTest, DroppedWorkIsNamedAtTheEnd) {
  expect_error("never waited for its all_reduce (sum of 1 Float)",
               error_of_ranks(2, [](World& world) { reduce(world, at::ones({1})); }));
  run_ranks(2, [](World& world) {
    try {
      const auto work = reduce(world, at::ones({1}));
      throw std::runtime_error("something else");
    } catch (const std::runtime_error&) {
      reduce(world, at::ones({1}))->wait();
    }
  });
}

TEST_F(StrictBackendTest, UngroupedSendsWaitForEachOther) {
  const std::string error = error_of_ranks(2, [](World& world) {
    const auto sending = send(world, 1 - world.rank(), at::ones({3}));
    const at::Tensor got = at::zeros({3});
    const auto receiving = receive(world, 1 - world.rank(), got);
    sending->wait();
    receiving->wait();
  });
  expect_error("the ranks wait for each other", error);
  expect_error("rank 0 is in messages (3 Float to member 1) of ranks [0, 1]", error);
  expect_error("rank 1 is in messages (3 Float to member 0) of ranks [0, 1]", error);
  run_ranks(2, [](World& world) {
    const at::Tensor got = at::zeros({3});
    grouped(world, [&] {
      send(world, 1 - world.rank(), at::ones({3}));
      receive(world, 1 - world.rank(), got);
    })->wait();
    EXPECT_EQ(got[2].item<float>(), 1.F);
  });
}

TEST_F(StrictBackendTest, UngroupedPairsInOneOrderNeedNobodyElse) {
  run_ranks(3, [](World& world) {
    const at::Tensor got = at::zeros({1});
    if (world.rank() == 0) send(world, 2, at::ones({1}))->wait();
    if (world.rank() == 2) receive(world, 0, got)->wait();
    EXPECT_EQ(got.item<float>(), world.rank() == 2 ? 1.F : 0.F);
  });
}

TEST_F(StrictBackendTest, CallsOfOneRankRunOneAfterAnother) {
  expect_error("the ranks wait for each other", error_of_ranks(2, [](World& world) {
                 reduce(world, at::ones({1}))->wait();
                 const at::Tensor got = at::zeros({1});
                 const auto message = [&] {
                   return grouped(world, [&] { world.rank() == 0 ? send(world, 1, got) : receive(world, 0, got); });
                 };
                 const auto sum = [&] { return reduce(world, at::ones({1})); };
                 const auto first = world.rank() == 0 ? sum() : message();
                 const auto second = world.rank() == 0 ? message() : sum();
                 second->wait();
                 first->wait();
               }));
}

TEST_F(StrictBackendTest, GroupsOfThreeRunInParts) {
  run_ranks(3, [](World& world) {
    reduce(world, at::ones({1}))->wait();
    // 0 sends to 1, and 1 to 2, each in its own launch; 2 first hears of 1
    const at::Tensor got = at::zeros({1}), also = at::zeros({1});
    if (world.rank() == 0) grouped(world, [&] { send(world, 1, at::full({1}, 4.F)), receive(world, 2, got); })->wait();
    if (world.rank() == 1) {
      grouped(world, [&] { receive(world, 0, got); })->wait();
      grouped(world, [&] { send(world, 2, got); })->wait();
    }
    if (world.rank() == 2) {
      grouped(world, [&] { receive(world, 1, also); })->wait();
      grouped(world, [&] { send(world, 0, also + 1); })->wait();
    }
    EXPECT_EQ((got + also).item<float>(), world.rank() == 0 ? 5.F : 4.F);
  });
}

TEST_F(StrictBackendTest, MessagesOfDifferentSizesAreNamed) {
  expect_error(
      "[receive] rank 0 sends 3 Float to rank 1, which expects 2 Float", error_of_ranks(2, [](World& world) {
        const at::Tensor tensor = at::ones({3 - world.rank()});
        grouped(world, [&] { world.rank() == 0 ? send(world, 1, tensor) : receive(world, 0, tensor); })->wait();
      }));
}

TEST_F(StrictBackendTest, FactsOfAnotherCallAreAnError) {
  expect_error("[sizes] ranks 0 and 1 make different calls", error_of_ranks(2, [](World& world) {
                 const char* const what = world.rank() == 0 ? "sizes" : "names";
                 if (world.rank() == 1)
                   EXPECT_THROW(gather_alike(*everyone(world), what, {1}), c10::ValueError);
                 else
                   gather_alike(*everyone(world), what, {1});
               }));
}

}  // namespace
}  // namespace shardwise::strict_backend_test
