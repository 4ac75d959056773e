#include "runtime/threads/thread_backend.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::thread_backend_test {
namespace {

c10::intrusive_ptr<c10d::Backend> backend(World& world) {
  return everyone(world)->process_group->getBackend(c10::kCPU);
}

at::Tensor range(int64_t begin, int64_t end) { return at::arange(begin, end, at::kLong); }

TEST(ThreadBackendTest, GathersEachMembersTensor) {
  run_ranks(3, [](World& world) {
    std::vector<at::Tensor> inputs{at::full({2}, world.rank())};
    std::vector<std::vector<at::Tensor>> outputs{{at::zeros({2}), at::zeros({2}), at::zeros({2})}};
    backend(world)->allgather(outputs, inputs)->wait();
    for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(outputs[0][i].eq(i).all().item<bool>());
  });
}

TEST(ThreadBackendTest, RootGathersAndScatters) {
  run_ranks(2, [](World& world) {
    std::vector<at::Tensor> inputs{range(world.rank(), world.rank() + 2)};
    std::vector<std::vector<at::Tensor>> outputs;
    if (world.rank() == 1) outputs = {{range(0, 2), range(0, 2)}};
    c10d::GatherOptions gather;
    gather.rootRank = 1;
    backend(world)->gather(outputs, inputs, gather)->wait();
    EXPECT_TRUE(outputs.empty() || outputs[0][1].equal(range(1, 3)));

    std::vector<at::Tensor> received{range(0, 2)};
    c10d::ScatterOptions scatter;
    scatter.rootRank = 1;
    backend(world)->scatter(received, outputs, scatter)->wait();
    EXPECT_TRUE(received[0].equal(range(world.rank(), world.rank() + 2)));
  });
}

TEST(ThreadBackendTest, ReduceChangesTheRootAlone) {
  run_ranks(3, [](World& world) {
    std::vector<at::Tensor> tensors{at::full({1}, world.rank() + 1, at::kLong)};
    c10d::ReduceOptions options;
    options.rootRank = 2;
    options.reduceOp = c10d::ReduceOp::PRODUCT;
    backend(world)->reduce(tensors, options)->wait();
    EXPECT_EQ(tensors[0].item<int64_t>(), world.rank() == 2 ? 6 : world.rank() + 1);
  });
}

TEST(ThreadBackendTest, ReduceScatterLeavesOwnPart) {
  run_ranks(2, [](World& world) {
    at::Tensor input = range(0, 6);
    at::Tensor output = range(0, 3);
    backend(world)->_reduce_scatter_base(output, input)->wait();
    EXPECT_TRUE(output.equal(2 * range(3 * world.rank(), 3 * world.rank() + 3)));
  });
}

TEST(ThreadBackendTest, AllToAllWithoutSplitsIsEvenAndMovesRows) {
  run_ranks(2, [](World& world) {
    at::Tensor input = (range(0, 8) + 10 * world.rank()).view({4, 2});
    at::Tensor output = at::zeros({4, 2}, at::kLong);
    std::vector<int64_t> even;
    backend(world)->alltoall_base(output, input, even, even)->wait();
    const at::Tensor own_half = range(4 * world.rank(), 4 * world.rank() + 4).view({2, 2});
    EXPECT_TRUE(output.equal(at::cat({own_half, own_half + 10})));
  });
}

TEST(ThreadBackendTest, BarrierHoldsEveryoneBack) {
  std::atomic<int> n_before{0};
  run_ranks(3, [&](World& world) {
    ++n_before;
    backend(world)->barrier()->wait();
    EXPECT_EQ(n_before, 3);
  });
}

TEST(ThreadBackendTest, ReceivesByTagAndInOrder) {
  run_ranks(2, [](World& world) {
    const auto send = [&](int64_t value, int tag) {
      std::vector<at::Tensor> tensors{at::full({2}, value, at::kLong)};
      backend(world)->send(tensors, 1, tag)->wait();
    };
    const auto receive = [&](int tag) {
      std::vector<at::Tensor> tensors{at::zeros({2}, at::kLong)};
      backend(world)->recv(tensors, 0, tag)->wait();
      return tensors[0][1].item<int64_t>();
    };
    if (world.rank() == 0) {
      send(10, 1);
      send(20, 2);
      send(11, 1);
    } else {
      EXPECT_EQ(receive(2), 20);
      EXPECT_EQ(receive(1), 10);
      EXPECT_EQ(receive(1), 11);
    }
  });
}

TEST(ThreadBackendTest, ReducesWithEveryOperator) {
  // operator, values of ranks 0 and 1, result
  const std::vector<std::tuple<c10d::ReduceOp::RedOpType, int64_t, int64_t, int64_t>> cases{
      {c10d::ReduceOp::SUM, 6, 3, 9}, {c10d::ReduceOp::PRODUCT, 6, 3, 18}, {c10d::ReduceOp::MIN, 6, 3, 3},
      {c10d::ReduceOp::MAX, 6, 3, 6}, {c10d::ReduceOp::BAND, 6, 3, 2},     {c10d::ReduceOp::BOR, 6, 3, 7},
      {c10d::ReduceOp::BXOR, 6, 3, 5}};
  run_ranks(2, [&](World& world) {
    for (const auto& [op, first, second, expected] : cases) {
      std::vector<at::Tensor> tensors{at::full({1}, world.rank() == 0 ? first : second, at::kLong)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      backend(world)->allreduce(tensors, options)->wait();
      EXPECT_EQ(tensors[0].item<int64_t>(), expected);
    }
    std::vector<at::Tensor> tensors{at::full({1}, world.rank(), at::kFloat)};
    c10d::AllreduceOptions avg;
    avg.reduceOp = c10d::ReduceOp::AVG;
    backend(world)->allreduce(tensors, avg)->wait();
    EXPECT_EQ(tensors[0].item<float>(), 0.5F);
  });
}

TEST(ThreadBackendTest, WrongNumbersOfTensorsAreNamed) {
  expect_error("[broadcast] got 2 tensors. Pass one.", error_of_ranks(2, [](World& world) {
                 std::vector<at::Tensor> two{at::ones({1}), at::ones({1})};
                 backend(world)->broadcast(two);
               }));
  expect_error("[all_gather] 3 elements are not 2 ranks' parts of 2", error_of_ranks(2, [](World& world) {
                 at::Tensor output = at::ones({3});
                 at::Tensor input = at::ones({2});
                 backend(world)->_allgather_base(output, input);
               }));
  expect_error("[send] member 0 names member 0 of 1. Name another one in [0, 1).", error_of_ranks(1, [](World& world) {
                 std::vector<at::Tensor> one{at::ones({1})};
                 backend(world)->send(one, 0, 0);
               }));
}

}  // namespace
}  // namespace shardwise::thread_backend_test
