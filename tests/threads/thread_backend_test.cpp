#include "threads/thread_backend.h"

#include "tests/support/ranks.h"
#include "tests/support/strict_threads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::thread_backend_test {
namespace {

c10::intrusive_ptr<c10d::Backend> backend(World& world) {
  return everyone(world)->process_group->getBackend(c10::kCPU);
}

at::Tensor range(int64_t begin, int64_t end) { return at::arange(begin, end, at::kLong); }

class ThreadBackendTest : public testing::Test {
 private:
  StrictThreads relaxed_{false};
};

TEST_F(ThreadBackendTest, AllToAllWithoutSplitsIsEvenAndMovesRows) {
  run_ranks(2, [](World& world) {
    at::Tensor input = (range(0, 8) + 10 * world.rank()).view({4, 2});
    at::Tensor output = at::zeros({4, 2}, at::kLong);
    std::vector<int64_t> even;
    backend(world)->alltoall_base(output, input, even, even)->wait();
    const at::Tensor own_half = range(4 * world.rank(), 4 * world.rank() + 4).view({2, 2});
    EXPECT_TRUE(output.equal(at::cat({own_half, own_half + 10})));
  });
}

TEST_F(ThreadBackendTest, ReceivesByTagAndInOrder) {
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

TEST_F(ThreadBackendTest, ReducesWithEveryOperator) {
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

TEST_F(ThreadBackendTest, WrongNumbersOfTensorsAreNamed) {
  expect_error("[broadcast] got 2 tensors. Pass one.", error_of_ranks(2, [](World& world) {
                 std::vector<at::Tensor> two{at::ones({1}), at::ones({1})};
                 backend(world)->broadcast(two);
               }));
  expect_error("[all_gather] an output of 3 elements does not hold 2 parts of 2", error_of_ranks(2, [](World& world) {
                 at::Tensor output = at::ones({3});
                 at::Tensor input = at::ones({2});
                 backend(world)->_allgather_base(output, input);
               }));
  expect_error("[all_to_all] 3 rows do not split evenly among 2 ranks", error_of_ranks(2, [](World& world) {
                 at::Tensor input = at::ones({3});
                 std::vector<int64_t> even;
                 backend(world)->alltoall_base(input, input, even, even);
               }));
  expect_error("splits [1, 1] do not add up to the 3 rows of the tensor for 2 ranks",
               error_of_ranks(2, [](World& world) {
                 at::Tensor input = at::ones({3});
                 std::vector<int64_t> splits{1, 1};
                 backend(world)->alltoall_base(input, input, splits, splits);
               }));
  expect_error("ranks that are threads cannot reduce with a pre-multiplied sum", error_of_ranks(2, [](World& world) {
                 std::vector<at::Tensor> one{at::ones({1})};
                 c10d::AllreduceOptions options;
                 options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::PREMUL_SUM,
                                                   c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(2.0));
                 backend(world)->allreduce(one, options);
               }));
  expect_error("[send] member 0 names member 0 of 1. Name another one in [0, 1).", error_of_ranks(1, [](World& world) {
                 std::vector<at::Tensor> one{at::ones({1})};
                 backend(world)->send(one, 0, 0);
               }));
}

}  // namespace
}  // namespace shardwise::thread_backend_test
