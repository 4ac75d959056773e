// The kernels of kernels/ against plain loops: every element, both kinds of ids, odd widths, pieces, and offsets beyond 32 bits.
#include "kernels/bag_pool.h"
#include "kernels/id_groups.h"
#include "kernels/row_lookup.h"
#include "kernels/row_norms.h"
#include "kernels/row_sums.h"
#include "kernels/row_updates.h"
#include "tests/kernels/matrix.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace shardwise::kernels {
namespace {

template <class Body>
void for_all_kinds(const Body& body) {
  for (const Element element : kElements)
    for (const bool as_int32 : {false, true})
      for (const int64_t width : kWidths) body(element, as_int32, width);
}

TEST(RowKernelsTest, LookupsCopyRowsOfThePieceAndZeroOthers) {
  for_all_kinds([](Element element, bool as_int32, int64_t width) {
    Matrix table = Matrix(element, 10, width, 3).fill(1), results(element, 40, width);
    const IdList ids(random_ids(40, 16, 2), as_int32);
    look_up(table.rows(4), ids.ids(), Miss::kZero, results.memory.data(), width, 0, 25);
    look_up(table.rows(4), ids.ids(), Miss::kZero, results.memory.data(), width, 25, 40);
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t row = ids.wide[i] - 4;
        ASSERT_EQ(results.get(i, c), row >= 0 && row < 10 ? table.get(row, c) : 0) << i << " " << c;
      }
  });
}

TEST(RowKernelsTest, LookupsMayKeepWhatOthersFound) {
  Matrix table = Matrix(Element::kFloat, 4, 3).fill(1), results = Matrix(Element::kFloat, 3, 8).fill(2);
  const Matrix before = results;
  const IdList ids({1, 9, -1}, false);
  look_up(table.rows(), ids.ids(), Miss::kKeep, results.memory.data() + 2 * sizeof(float), 8, 0, 3);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t c = 0; c < 8; ++c)
      EXPECT_EQ(results.get(i, c), i == 0 && c >= 2 && c < 5 ? table.get(1, c - 2) : before.get(i, c));
}

TEST(RowKernelsTest, GroupsAreSortedAndStable) {
  for (const bool as_int32 : {false, true})
    for (const int64_t below : {1, 2, 100, 5000, 3000000}) {
      const IdList ids(random_ids(3000, below, 3), as_int32);
      const int64_t first = below / 4, n_rows = std::max<int64_t>(below / 2, 1), skipped = first + n_rows / 2;
      const Grouped groups = grouped(ids.ids(), first, n_rows, skipped);
      std::map<int64_t, std::vector<int64_t>> expected;
      for (int64_t i = 0; i < 3000; ++i)
        if (const int64_t row = ids.wide[i] - first; row >= 0 && row < n_rows && ids.wide[i] != skipped)
          expected[row].push_back(i);
      ASSERT_EQ(groups.n, static_cast<int64_t>(expected.size()));
      int64_t g = 0;
      for (const auto& [row, places] : expected) {
        ASSERT_EQ(groups.rows[g], row);
        ASSERT_TRUE(std::equal(places.begin(), places.end(), groups.order.begin() + groups.starts[g],
                               groups.order.begin() + groups.starts[g + 1]));
        for (const int64_t place : places) ASSERT_EQ(groups.group_of[place], g);
        ++g;
      }
      ASSERT_EQ(std::count_if(groups.group_of.begin(), groups.group_of.end(), [](int64_t of) { return of >= 0; }),
                groups.starts.back());
    }
}

TEST(RowKernelsTest, GroupsOfNothingAndOfHugeRows) {
  EXPECT_EQ(grouped(IdList({}, false).ids(), 0, 10).n, 0);
  EXPECT_EQ(grouped(IdList({3}, false).ids(), 5, 0).n, 0);
  const int64_t far = int64_t{1} << 50;
  const Grouped groups = grouped(IdList({far + 7, 2, far, far + 7}, false).ids(), 0, far + 8);
  EXPECT_EQ(groups.rows, (std::vector<int64_t>{2, far, far + 7}));
  EXPECT_EQ(groups.order, (std::vector<int64_t>{1, 2, 0, 3}));
}

TEST(RowKernelsTest, RangesOfIds) {
  for (const bool as_int32 : {false, true}) {
    const IdList ids({5, -3, 9, 9, 0}, as_int32);
    EXPECT_EQ(range_of(ids.ids(), 0, 5).lowest, -3);
    EXPECT_EQ(range_of(ids.ids(), 0, 5).highest, 9);
    EXPECT_EQ(range_of(ids.ids(), 2, 4).lowest, 9);
    EXPECT_GT(range_of(ids.ids(), 2, 2).lowest, range_of(ids.ids(), 2, 2).highest);
  }
}

TEST(RowKernelsTest, DigestsOfIds) {
  for (const bool as_int32 : {false, true}) {
    const IdList ids({5, -3, 9, 9, 0}, as_int32);
    const uint64_t digest = digest_of(ids.ids(), 0, 5);
    EXPECT_EQ(digest_of(ids.ids(), 0, 2) + digest_of(ids.ids(), 2, 5), digest);
    for (const std::vector<int64_t>& other :
         {std::vector<int64_t>{-3, 5, 9, 9, 0}, {5, -3, 9, 9, 1}, {8, -4, 9, 9, 0}, {5, -3, 9, 9}})
      EXPECT_NE(digest_of(IdList(other, as_int32).ids(), 0, static_cast<int64_t>(other.size())), digest);
  }
}

TEST(RowKernelsTest, SumsAreRoundedOnce) {
  for_all_kinds([](Element element, bool as_int32, int64_t width) {
    Matrix grads = Matrix(element, 60, width, 1).fill(4), results(element, 12, width), compact(element, 12, width);
    const IdList ids(random_ids(60, 10, 5), as_int32);
    const Grouped groups = grouped(ids.ids(), 0, 12);
    std::ranges::fill(results.memory, char{1});  // rows without ids are to be cleared
    for (const auto& [first, end] : {std::pair{0, 5}, std::pair{5, 12}})
      sum_rows(grads.grads(), groups.all(), groups.rows.data(), results.memory.data(), first, end);
    sum_groups(grads.grads(), groups.all(), compact.memory.data(), 0, groups.n);
    for (int64_t g = 0; g < groups.n; ++g)
      for (int64_t c = 0; c < width; ++c) ASSERT_EQ(compact.get(g, c), results.get(groups.rows[g], c));
    Matrix expected(element, 12, width);
    for (int64_t c = 0; c < width; ++c)
      for (int64_t row = 0; row < 12; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < 60; ++i) sum += ids.wide[i] == row ? grads.get(i, c) : 0;
        expected.set(row, c, sum);  // sums of these numbers are exact before they are stored
        ASSERT_EQ(results.get(row, c), expected.get(row, c));
      }
  });
}

TEST(RowKernelsTest, SumsOfHalvesDoNotStandStill) {
  // 4096 ones: in bfloat16 or half arithmetic the sum would stop at 256 or 2048.
  for (const Element element : {Element::kBFloat16, Element::kHalf}) {
    Matrix grads(element, 4096, 1), result(element, 1, 1);
    for (int64_t i = 0; i < 4096; ++i) grads.set(i, 0, 1);
    const Grouped groups = grouped(IdList(std::vector<int64_t>(4096, 0), false).ids(), 0, 1);
    sum_groups(grads.grads(), groups.all(), result.memory.data(), 0, 1);
    EXPECT_EQ(result.get(0, 0), 4096);
  }
}

/// The value of bag `bag` in column `c` over the ids of the piece.
double pooled(const Matrix& table, int64_t first_row, const std::vector<int64_t>& ids, const Bags& bags,
              Pooling pooling, const Matrix* weights, int64_t bag, int64_t c) {
  const int64_t end = bag + 1 < bags.n ? bags.offsets[bag + 1] : bags.n_ids;
  double sum = 0, largest = -std::numeric_limits<double>::infinity();
  int64_t n = 0;
  for (int64_t k = bags.offsets[bag]; k < end; ++k) {
    if (ids[k] == bags.padding) continue;
    ++n;
    const int64_t row = ids[k] - first_row;
    if (row < 0 || row >= table.n_rows) continue;
    sum += table.get(row, c) * (weights == nullptr ? 1 : weights->get(k, 0));
    largest = std::max(largest, table.get(row, c));
  }
  if (n == 0) return 0;
  return pooling == Pooling::kMax ? largest : pooling == Pooling::kMean ? sum / static_cast<double>(n) : sum;
}

TEST(RowKernelsTest, BagsOfThePiecesRows) {
  for_all_kinds([](Element element, bool as_int32, int64_t width) {
    Matrix table = Matrix(element, 8, width, 2).fill(6), weights = Matrix(element, 50, 1).fill(7);
    std::vector<int64_t> all_here = random_ids(50, 8, 8);
    for (int64_t& id : all_here) id += 2;
    const IdList lists[] = {{random_ids(50, 12, 8), as_int32}, {all_here, as_int32}};
    const std::vector<int64_t> offsets{0, 0, 3, 20, 20, 49};
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kMax})
      for (const auto& [padding, list] : {std::pair(-1, 0), std::pair(5, 0), std::pair(-1, 1), std::pair(5, 1)}) {
        const IdList& ids = lists[list];
        const bool is_weighted = pooling == Pooling::kSum && padding == 5;
        const Bags bags{offsets.data(), 6, 50, padding, is_weighted ? weights.memory.data() : nullptr};
        Matrix results(element, 6, width);
        pool(table.rows(2), ids.ids(), bags, pooling, results.memory.data(), nullptr, 0, 6);
        for (int64_t bag = 0; bag < 6; ++bag)
          for (int64_t c = 0; c < width; ++c) {
            const double expected = pooled(table, 2, ids.wide, bags, pooling, is_weighted ? &weights : nullptr, bag, c);
            const double error = size_of(element) == 2 ? std::abs(expected) / 128 : 1e-5;
            if (expected == results.get(bag, c)) continue;  // infinities too
            ASSERT_NEAR(results.get(bag, c), expected, error) << bag << " " << c;
          }
      }
  });
}

TEST(RowKernelsTest, MaximaNameTheFirstIdThatHasThem) {
  Matrix table(Element::kFloat, 3, 1);
  table.set(0, 0, 2), table.set(1, 0, 5), table.set(2, 0, 5);
  const IdList ids({0, 2, 1, 7, 7}, false);
  const std::vector<int64_t> offsets{0, 3, 5};
  Matrix results(Element::kFloat, 3, 1);
  std::vector<int64_t> chosen(3);
  pool(table.rows(), ids.ids(), {offsets.data(), 3, 5, -1, nullptr}, Pooling::kMax, results.memory.data(),
       chosen.data(), 0, 3);
  EXPECT_EQ(chosen, (std::vector<int64_t>{1, -1, -1}));
  EXPECT_EQ(results.get(0, 0), 5);
  EXPECT_EQ(results.get(1, 0), -std::numeric_limits<double>::infinity());  // ids, none of them here
  EXPECT_EQ(results.get(2, 0), 0);                                         // no ids
}

TEST(RowKernelsTest, NormsAndShorterRows) {
  for (const Element element : kElements)
    for (const int64_t width : kWidths)
      for (const double p : {1.0, 2.0, 3.0, 0.0, std::numeric_limits<double>::infinity()}) {
        Matrix table = Matrix(element, 6, width, 1).fill(9);
        const Matrix before = table;
        const std::vector<int64_t> rows{1, 4, 5};
        std::vector<double> powers(3);
        row_powers(table.rows(), rows.data(), p, powers.data(), 0, 3);
        shorten_rows(table.rows(), rows.data(), p, 1.5, powers.data(), 0, 3);
        for (int64_t row = 0; row < 6; ++row) {
          double power = 0;
          for (int64_t c = 0; c < width; ++c) {
            const double x = std::abs(before.get(row, c));
            power = std::isinf(p) ? std::max(power, x) : power + (p == 0 ? x != 0 : std::pow(x, p));
          }
          const double norm = p == 0 || std::isinf(p) ? power : std::pow(power, 1 / p);
          const bool is_named = std::ranges::find(rows, row) != rows.end();
          const double factor = is_named && norm > 1.5 ? 1.5 / (norm + 1e-7) : 1;
          for (int64_t c = 0; c < width; ++c)
            ASSERT_NEAR(table.get(row, c), before.get(row, c) * factor, size_of(element) == 2 ? 0.02 : 1e-6);
        }
      }
}

TEST(RowKernelsTest, OffsetsPass32Bits) {
  // 40 million rows of 64 float32: 10 GiB of address space, of which a few pages are touched.
  const int64_t n_rows = 40'000'000, width = 64;
  const size_t n_bytes = static_cast<size_t>(n_rows) * width * sizeof(float);
  void* memory = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 10 GiB of addresses";
  const Rows table{memory, Element::kFloat, 0, n_rows, width, width};
  const IdList ids({39'999'999, 35'000'000, 39'999'999}, true);
  Matrix grads = Matrix(Element::kFloat, 3, width).fill(1), results(Element::kFloat, 3, width);
  const Grouped groups = grouped(ids.ids(), 0, n_rows);
  const UpdatedPiece piece{table, {nullptr, nullptr}, {RowUpdate::Method::kSgd, 1, 0, 0, 0}};
  update_rows({&piece, 1}, grads.grads(), groups.all(), groups.rows.data(), {}, 0, groups.n);
  look_up(table, ids.ids(), Miss::kZero, results.memory.data(), width, 0, 3);
  for (int64_t c = 0; c < width; ++c) {
    EXPECT_EQ(results.get(0, c), -grads.get(0, c) - grads.get(2, c));
    EXPECT_EQ(results.get(1, c), -grads.get(1, c));
  }
  sum_rows(grads.grads(), groups.all(), groups.rows.data(), memory, 35'000'000, 35'000'002);
  EXPECT_EQ(static_cast<float*>(memory)[35'000'000 * width + 5], grads.get(1, 5));
  munmap(memory, n_bytes);
}

}  // namespace
}  // namespace shardwise::kernels
