// The same claims for both worlds: on three threads here, on processes over Gloo when gloo_main.cpp starts them.
#include "runtime/comm/collectives.h"

#include "runtime/comm/events.h"
#include "tests/support/either_world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace shardwise::collectives_test {
namespace {

using Splits = std::vector<int64_t>;

const std::vector<at::ScalarType> kReducible{at::kByte,     at::kChar,   at::kShort,  at::kInt,
                                             at::kLong,     at::kUInt16, at::kUInt32, at::kHalf,
                                             at::kBFloat16, at::kFloat,  at::kDouble, at::kFloat8_e4m3fn};

std::vector<at::ScalarType> any_dtype() {
  auto dtypes = kReducible;
  for (const auto more : {at::kBool, at::kUInt64, at::kComplexFloat, at::kComplexDouble}) dtypes.push_back(more);
  return dtypes;
}

/// Exchanges `n_elements(from, to)` elements of value 10 * from + to (in `dtype`) between all and checks what came.
void expect_exchanged(World& world, at::ScalarType dtype, const std::function<int64_t(int64_t, int64_t)>& n_elements) {
  Splits sends, receives;
  std::vector<at::Tensor> sent, expected;
  for (int64_t other = 0; other < world.size(); ++other) {
    sends.push_back(n_elements(world.rank(), other));
    receives.push_back(n_elements(other, world.rank()));
    sent.push_back(at::full({sends.back()}, 10 * world.rank() + other, at::kDouble));
    expected.push_back(at::full({receives.back()}, 10 * other + world.rank(), at::kDouble));
  }
  const at::Tensor want = at::cat(expected).to(dtype);
  const at::Tensor output = at::zeros_like(want);
  all_to_all(*everyone(world), output, at::cat(sent).to(dtype), receives, sends);
  EXPECT_TRUE(output.to(at::kComplexDouble).equal(want.to(at::kComplexDouble))) << at::toString(dtype);
}

TEST(AllToAllTest, MovesUnevenPiecesOfAnyDtype) {
  on_ranks([](World& world) {
    for (const auto dtype : any_dtype())
      expect_exchanged(world, dtype, [](int64_t from, int64_t to) { return (from + 2 * to) % 4; });
  });
}

TEST(AllToAllTest, RankWithoutElementsTakesPart) {
  on_ranks([](World& world) {
    expect_exchanged(world, at::kFloat, [](int64_t, int64_t) { return 0; });
    expect_exchanged(world, at::kFloat, [](int64_t from, int64_t to) { return from == 0 && to == 1 ? 3 : 0; });
    expect_exchanged(world, at::kFloat, [](int64_t from, int64_t to) { return from == to ? 3 : 0; });
  });
}

TEST(AllToAllTest, CountsBytesWithoutOwn) {
  on_ranks([](World& world) {
    const CommTrace trace;
    expect_exchanged(world, at::kDouble, [](int64_t from, int64_t to) { return from == to ? 100 : from + 1; });
    ASSERT_EQ(trace.total_count(), 1);
    EXPECT_EQ(trace.events()[0].collective, "all_to_all");
    EXPECT_EQ(trace.bytes_sent(), 8 * 2 * (world.rank() + 1));
    EXPECT_EQ(trace.bytes_received(), 8 * (6 - (world.rank() + 1)));
  });
}

TEST(AllToAllTest, MisfitsAreNamedBeforeAnyMessage) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    const at::Tensor flat = at::ones({6});
    const Splits even{2, 2, 2};
    const auto error = [&](const at::Tensor& out, const at::Tensor& in, const Splits& receives, const Splits& sends) {
      return error_of<c10::ValueError>([&] { all_to_all(*group, out, in, receives, sends); });
    };
    expect_error("send splits [2, 2, 3] do not split a tensor of shape [6] among 3 ranks",
                 error(flat, flat, even, {2, 2, 3}));
    expect_error("receive splits [6]", error(flat, flat, {6}, even));
    expect_error("receive splits [8, -2, 0]", error(flat, flat, {8, -2, 0}, even));
    expect_error("shape [2, 3]", error(flat.view({2, 3}), flat, even, even));
    expect_error("sends Float but receives Int", error(flat.to(at::kInt), flat, even, even));
    expect_error("not contiguous", error(at::ones({12}).slice(0, 0, 12, 2), flat, even, even));
  });
}

/// What each rank brings: small numbers that no product of three overflows.
at::Tensor numbers_of(int64_t rank, at::ScalarType dtype) {
  return (at::arange(5, at::kDouble).remainder(3) + (rank + 1) % 3).to(dtype);
}

at::Tensor dense(int64_t n_ranks, at::ScalarType dtype, Reduce reduce) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < n_ranks; ++rank) all.push_back(numbers_of(rank, dtype).to(at::kDouble));
  const at::Tensor stacked = at::stack(all);
  switch (reduce) {
    case Reduce::kSum:
      return stacked.sum(0);
    case Reduce::kAvg:
      return stacked.mean(0);
    case Reduce::kMax:
      return stacked.amax(0);
    case Reduce::kMin:
      return stacked.amin(0);
    case Reduce::kProduct:
      return stacked.prod(0);
  }
  return {};
}

/// The reduction of 1, 2, ... n_ranks, in each element of a tensor like `like`.
at::Tensor dense_of_rank_numbers(int64_t n_ranks, Reduce reduce, const at::Tensor& like) {
  const double sum = static_cast<double>(n_ranks * (n_ranks + 1)) / 2;
  return at::full_like(like, reduce == Reduce::kSum   ? sum
                             : reduce == Reduce::kAvg ? sum / static_cast<double>(n_ranks)
                                                      : static_cast<double>(n_ranks));
}

TEST(AllReduceTest, EqualsTheDenseResultForEveryDtype) {
  on_ranks([](World& world) {
    for (const auto dtype : kReducible)
      for (const auto reduce : {Reduce::kSum, Reduce::kAvg, Reduce::kMax, Reduce::kMin, Reduce::kProduct}) {
        if (reduce == Reduce::kAvg && !at::isFloatingType(dtype)) continue;
        const at::Tensor tensor = numbers_of(world.rank(), dtype);
        all_reduce(*everyone(world), tensor, reduce);
        const at::Tensor expected = dense(world.size(), dtype, reduce).to(dtype);
        EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), expected.to(at::kDouble), /*rtol=*/1e-2))
            << to_string(reduce) << " of " << at::toString(dtype) << ": " << tensor;
      }
  });
}

TEST(AllReduceTest, BoolsAreAnyAndAll) {
  on_ranks([](World& world) {
    // all ranks, one rank, no rank
    const at::Tensor bools = at::tensor({1L, world.rank() == 0 ? 1L : 0L, 0L}).to(at::kBool);
    const auto reduced = [&](Reduce reduce) {
      const at::Tensor result = bools.clone();
      all_reduce(*everyone(world), result, reduce);
      EXPECT_EQ(result.scalar_type(), at::kBool);
      return result.to(at::kLong);
    };
    const at::Tensor any = at::tensor({1L, 1L, 0L});
    const at::Tensor all = at::tensor({1L, 0L, 0L});
    EXPECT_TRUE(reduced(Reduce::kSum).equal(any));
    EXPECT_TRUE(reduced(Reduce::kMax).equal(any));
    EXPECT_TRUE(reduced(Reduce::kProduct).equal(all));
    EXPECT_TRUE(reduced(Reduce::kMin).equal(all));
  });
}

TEST(AllReduceTest, NanAnywhereGivesNan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  on_ranks([&](World& world) {
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
      for (const auto reduce : {Reduce::kMax, Reduce::kMin})
        for (const double nan : {kNan, -kNan}) {
          const at::Tensor tensor = at::full({world.size() + 1}, 1.0, dtype);
          tensor[world.rank()].fill_(nan);
          all_reduce(*everyone(world), tensor, reduce);
          EXPECT_TRUE(tensor.slice(0, 0, -1).isnan().all().item<bool>()) << tensor;
          EXPECT_EQ(tensor[-1].item<double>(), 1.0);
        }
  });
}

TEST(AllReduceTest, ExtremaOrderSignsAndInfinities) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  on_ranks([&](World& world) {
    for (const auto dtype : {at::kHalf, at::kFloat, at::kDouble}) {
      const std::vector<std::vector<double>> rows{
          {-1.5, kInf, -kInf, -0.25}, {-2.5, 1, -2, 0.25}, {-0.5, -kInf, 3, -3}};
      const auto reduced = [&](Reduce reduce) {
        const at::Tensor tensor = at::tensor(rows[world.rank()]).to(dtype);
        all_reduce(*everyone(world), tensor, reduce);
        return tensor.to(at::kDouble);
      };
      EXPECT_TRUE(reduced(Reduce::kMax).equal(at::tensor({-0.5, kInf, 3.0, 0.25})));
      EXPECT_TRUE(reduced(Reduce::kMin).equal(at::tensor({-2.5, -kInf, -kInf, -3.0})));
    }
  });
}

TEST(AllReduceTest, ComplexNumbersAddAndAverage) {
  on_ranks([](World& world) {
    const at::Tensor sum = at::complex(at::full({2}, world.rank(), at::kFloat), at::ones({2}));
    const at::Tensor avg = sum.clone();
    all_reduce(*everyone(world), sum, Reduce::kSum);
    EXPECT_TRUE(sum.equal(at::complex(at::full({2}, 3.F), at::full({2}, 3.F))));
    all_reduce(*everyone(world), avg, Reduce::kAvg);
    EXPECT_TRUE(avg.equal(at::complex(at::ones({2}), at::ones({2}))));
  });
}

TEST(AllReduceTest, AvgOfHalvesOverflowsOnlyWhereItIsNoHalf) {
  on_ranks([](World& world) {
    const at::Tensor large = at::full({2}, 40'000, at::kHalf);
    all_reduce(*everyone(world), large, Reduce::kAvg);
    EXPECT_TRUE(large.eq(40'000).all().item<bool>()) << large;
    const at::Tensor tiny = at::full({2}, 6e-8, at::kHalf);  // the smallest there is
    all_reduce(*everyone(world), tiny, Reduce::kAvg);
    EXPECT_TRUE(tiny.equal(at::full({2}, 6e-8, at::kHalf))) << tiny;
    const at::Tensor complex = at::full({2}, 40'000, at::kComplexHalf);
    all_reduce(*everyone(world), complex, Reduce::kAvg);
    EXPECT_EQ(complex.to(at::kComplexFloat)[1].item<c10::complex<float>>(), c10::complex<float>(40'000, 0));
  });
}

TEST(AllReduceTest, Uint64WrapsLikeItsBits) {
  on_ranks([](World& world) {
    const at::Tensor tensor = at::full({2}, -1, at::kLong).view(at::kUInt64);
    all_reduce(*everyone(world), tensor, Reduce::kSum);
    EXPECT_EQ(tensor.view(at::kLong)[1].item<int64_t>(), -world.size());
  });
}

TEST(AllReduceTest, AnotherResultLeavesTheTermsAlone) {
  on_ranks([](World& world) {
    for (const int64_t numel : {10, 50'000, 1'500'000})  // in one round, in two, and by the backend
      for (const auto dtype : {at::kFloat, at::kHalf, at::kBool, at::kComplexFloat})
        for (const auto reduce : {Reduce::kSum, Reduce::kAvg, Reduce::kMax}) {
          if (reduce != Reduce::kSum && (dtype == at::kBool || dtype == at::kComplexFloat)) continue;
          SCOPED_TRACE(fmt::format("{} of {} {}", to_string(reduce), numel, at::toString(dtype)));
          const at::Tensor terms = at::full({numel}, world.rank() + 1, dtype), result = at::full_like(terms, 7);
          const at::Tensor expected = dense_of_rank_numbers(world.size(), reduce, result);
          all_reduce(*everyone(world), terms, result, reduce);
          EXPECT_TRUE(result.equal(expected));
          EXPECT_TRUE(terms.eq(at::full({}, world.rank() + 1, dtype)).all().item<bool>());
          result.fill_(7);
          start_all_reduce(*everyone(world), terms, result, reduce, WaitsFor::kShort)->finish();
          EXPECT_TRUE(result.equal(expected));
          EXPECT_TRUE(terms.eq(at::full({}, world.rank() + 1, dtype)).all().item<bool>());
          result.fill_(7);
          const auto started = start_all_reduce(*everyone(world), terms, result, reduce);
          terms.fill_(0);  // it has been read
          started->finish();
          EXPECT_TRUE(result.equal(expected));
        }
  });
}

TEST(AllReduceTest, StartedOnesAreAwaitedInAnyOrder) {
  on_ranks([](World& world) {
    const auto reduces = [&](int64_t numel, WaitsFor waits) {
      const std::vector<at::Tensor> tensors{at::full({numel}, 1.F), at::full({numel}, 2.F), at::full({numel}, 4.F)};
      std::vector<std::unique_ptr<Reduction>> started;
      for (const at::Tensor& tensor : tensors)
        started.push_back(start_all_reduce(*everyone(world), tensor, tensor, Reduce::kSum, waits));
      for (size_t i = 0; i < started.size(); ++i) {
        const size_t own = (i + world.rank()) % started.size();
        started[own]->finish();
        EXPECT_TRUE(tensors[own].eq(3 << own).all().item<bool>()) << numel << " elements of " << own;
        all_gather_numbers(*everyone(world), {world.rank()});  // awaited between them
      }
    };
    for (const int64_t numel : {10, 50'000, 1'500'000})  // in one round, in two, and by the backend
      for (const WaitsFor waits : {WaitsFor::kNothing, WaitsFor::kShort}) reduces(numel, waits);
  });
}

TEST(AllReduceTest, MeaninglessReductionsAreNamed) {
  const Group one{nullptr, {0}, 0};
  const auto error = [&](at::ScalarType dtype, Reduce reduce) {
    return error_of<c10::TypeError>([&] { all_reduce(one, at::ones({2}).to(dtype), reduce); });
  };
  expect_error("[all_reduce] avg of Int has no exact result: avg needs floating point", error(at::kInt, Reduce::kAvg));
  expect_error("avg of Bool", error(at::kBool, Reduce::kAvg));
  expect_error("max of ComplexFloat is not supported", error(at::kComplexFloat, Reduce::kMax));
  expect_error("product of ComplexDouble", error(at::kComplexDouble, Reduce::kProduct));
  expect_error("min of UInt64", error(at::kUInt64, Reduce::kMin));
  expect_error("strides [1, 2]",
               error_of<c10::ValueError>([&] { all_reduce(one, at::ones({2, 2}).t(), Reduce::kSum); }));
}

TEST(AllReduceTest, ZeroDimensionalAndStridedViewsOfStorageWork) {
  on_ranks([](World& world) {
    const at::Tensor table = at::zeros({4, 2});
    table[2].fill_(world.rank());
    all_reduce(*everyone(world), table[2], Reduce::kSum);
    EXPECT_TRUE(table.sum(1).equal(at::tensor({0.F, 0.F, 6.F, 0.F})));
    const at::Tensor scalar = at::full({}, world.rank());
    all_reduce(*everyone(world), scalar, Reduce::kMax);
    EXPECT_EQ(scalar.item<float>(), 2.F);
  });
}

TEST(AllReduceTest, CountsTheRingsBytes) {
  on_ranks([](World& world) {
    const CommTrace trace;
    all_reduce(*everyone(world), at::ones({6}), Reduce::kSum);
    all_reduce(*everyone(world), at::ones({0}), Reduce::kSum);  // sends nothing
    ASSERT_EQ(trace.total_count(), 1);
    EXPECT_EQ(trace.bytes_sent(), 2 * 24 * 2 / 3);
    EXPECT_EQ(trace.bytes_received(), trace.bytes_sent());
  });
}

TEST(CollectivesTest, RunBelowAutograd) {
  on_ranks([](World& world) {
    const at::Tensor tensor = at::ones({3}).requires_grad_();
    all_reduce(*everyone(world), tensor, Reduce::kSum);
    broadcast(*everyone(world), tensor, 1);
    EXPECT_TRUE(tensor.is_leaf());
    EXPECT_EQ(tensor[2].item<float>(), 3.F);
  });
}

TEST(BroadcastTest, CopiesTheRootsTensorOfAnyDtypeAndShape) {
  on_ranks([](World& world) {
    for (const auto dtype : any_dtype())
      for (const auto& sizes : std::vector<Splits>{{}, {2, 3}, {0}}) {
        const at::Tensor tensor = at::full(sizes, world.rank(), at::kDouble).to(dtype);
        broadcast(*everyone(world), tensor, 1);
        EXPECT_TRUE(tensor.to(at::kComplexDouble).eq(1).all().item<bool>()) << at::toString(dtype) << tensor;
      }
  });
}

TEST(BroadcastTest, CountsBytesByRole) {
  on_ranks([](World& world) {
    const CommTrace trace;
    broadcast(*everyone(world), at::ones({5}), 2);
    EXPECT_EQ(trace.bytes_sent(), world.rank() == 2 ? 40 : 0);
    EXPECT_EQ(trace.bytes_received(), world.rank() == 2 ? 0 : 20);
  });
}

TEST(BroadcastTest, UnknownRootIsNamed) {
  on_ranks([](World& world) {
    expect_error("root index 3 does not exist: the group has 3 ranks",
                 error_of<c10::ValueError>([&] { broadcast(*everyone(world), at::ones({1}), 3); }));
  });
}

TEST(AllGatherNumbersTest, LengthsMayDiffer) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    EXPECT_EQ(all_gather_numbers(*group, Splits(world.rank(), 7 + world.rank())),
              (std::vector<Splits>{{}, {8}, {9, 9}}));
    EXPECT_EQ(all_gather_numbers(*group, {}), (std::vector<Splits>{{}, {}, {}}));
  });
}

TEST(CollectivesTest, SubgroupsTalkAmongThemselves) {
  on_ranks([](World& world) {
    for (const auto& ranks : std::vector<Splits>{{2, 0}, {1, 2}, {0, 1}, {0, 2}}) {
      const GroupPtr group = world.group(ranks);
      if (!group) continue;
      EXPECT_EQ(all_gather_numbers(*group, {world.rank()})[1][0], std::max(ranks[0], ranks[1]));
    }
  });
}

TEST(CollectivesTest, GroupOfOneSendsNothing) {
  const Group one{nullptr, {0}, 0};
  const CommTrace trace;
  const at::Tensor tensor = at::full({2}, 3.F);
  const at::Tensor copy = at::zeros({2});
  all_reduce(one, tensor, Reduce::kAvg);
  broadcast(one, tensor, 0);
  all_to_all(one, copy, tensor, {2}, {2});
  EXPECT_TRUE(copy.equal(at::full({2}, 3.F)));
  EXPECT_EQ(all_gather_numbers(one, {4, 5}), (std::vector<Splits>{{4, 5}}));
  EXPECT_EQ(trace.total_count(), 0);
}

}  // namespace
}  // namespace shardwise::collectives_test
