#include "plans/traffic_matrix.h"

#include "plans/traffic.h"
#include "tests/placements/layouts.h"

namespace shardwise::traffic_matrix_test {
namespace {

using P = Placement;

/// What each rank sends and receives, by the matrix with a block per rank, against traffic().
void expect_sums_of_traffic(const Plan& made) {
  const std::vector<int64_t> ranks = ranks_of(made);
  const auto n = ranks.size();
  const TrafficMatrix matrix = traffic_matrix(made, static_cast<int64_t>(n));
  ASSERT_EQ(matrix.blocks.size(), n);
  int64_t along = matrix.bytes_across;
  for (const int64_t n_bytes : matrix.bytes_along) along += n_bytes;
  EXPECT_EQ(along, matrix.total());
  for (size_t i = 0; i < n; ++i) {
    int64_t sent = 0, received = 0;
    for (size_t j = 0; j < n; ++j) {
      sent += matrix.at(i, j);
      received += matrix.at(j, i);
    }
    EXPECT_EQ(matrix.at(i, i), 0);
    EXPECT_EQ(sent, traffic(made, ranks[i]).sent) << "rank " << ranks[i];
    EXPECT_EQ(received, traffic(made, ranks[i]).received) << "rank " << ranks[i];
  }
}

TEST(TrafficMatrixTest, RowsAndColumnsSumToWhatRanksSendAndReceive) {
  const auto square = grid({2, 3});
  const std::vector<Placement> each = {P(), P::shard(0), P::shard(1), P::partial()};
  for (const Placement& a : each)
    for (const Placement& b : each)
      for (const Placement& c : each)
        for (const Placement& d : each) {
          if (c.is_partial() || d.is_partial()) continue;
          const Layout from({7, 5}, square, {a, b}), to({7, 5}, square, {c, d});
          SCOPED_TRACE(to_string(from) + " -> " + to_string(to));
          expect_sums_of_traffic(plan(from, to, 4));
        }
  const auto pieces = P::enumerable({{{0, 0}, {7, 2}, 1}, {{0, 2}, {3, 3}, 0}, {{3, 2}, {4, 3}, 1}});
  expect_sums_of_traffic(plan(Layout({7, 5}, grid({3}), {pieces}), Layout({7, 5}, grid({3}), {P::shard(0)}), 4));
  expect_sums_of_traffic(
      plan(Layout({7, 5}, grid({2}), {P::shard(0)}), Layout({7, 5}, grid({3}, {4, 1, 9}), {P::shard(1)}), 4));
  expect_sums_of_traffic(plan(Layout({0, 5}, grid({2}), {P::shard(0)}), Layout({0, 5}, grid({2}), {P()}), 4));
}

TEST(TrafficMatrixTest, BlocksHoldTheSums) {
  const auto ten = grid({10});
  const Plan made = plan(Layout({40, 30}, ten, {P::shard(0)}), Layout({40, 30}, ten, {P::shard(1)}), 4);
  const TrafficMatrix fine = traffic_matrix(made, 10), blocks = traffic_matrix(made, 3), again = folded(fine, 3);
  EXPECT_EQ(blocks.blocks, (std::vector<std::vector<int64_t>>{{0, 1, 2}, {3, 4, 5}, {6, 7, 8, 9}}));
  EXPECT_EQ(blocks.total(), fine.total());
  EXPECT_EQ(blocks.bytes, again.bytes);
  EXPECT_EQ(blocks.blocks, again.blocks);
  EXPECT_EQ(blocks.at(0, 1), 9 * fine.at(0, 3));
}

TEST(TrafficMatrixTest, ManyMessagesAreCountedOnSomeRanksAndScaledUp) {
  const auto many = grid({64});
  const Plan made = plan(Layout({640, 640}, many, {P::shard(0)}), Layout({640, 640}, many, {P::shard(1)}), 4);
  const TrafficMatrix all = traffic_matrix(made, 4), some = traffic_matrix(made, 4, 16 * 63);
  EXPECT_EQ(all.n_senders_asked, 64);
  EXPECT_EQ(some.n_senders_asked, 16);
  EXPECT_EQ(some.total(), all.total());
}

TEST(TrafficMatrixTest, MovesNameTheBoxes) {
  const Plan made = plan(Layout({8}, grid({2}), {P::shard(0)}), Layout({8}, grid({2}), {P()}), 4);
  const auto all = sent_boxes(made, made.steps.at(0), 9);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].from, 0);
  EXPECT_EQ(all[0].to, 1);
  EXPECT_EQ(to_string(all[0].box), "[0:4]");
  EXPECT_EQ(all[0].n_bytes, 16);
  EXPECT_EQ(sent_boxes(made, made.steps.at(0), 1).size(), 1U);
}

}  // namespace
}  // namespace shardwise::traffic_matrix_test
