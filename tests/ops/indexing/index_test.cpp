// Indexing with tensors: any self and any indices against dense ones, what moves, masks, and indices out of range.
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::index_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

using Indices = c10::List<std::optional<at::Tensor>>;

/// Indices in [-size, size), laid out as `numbers`.
at::Tensor indices_in(const at::Tensor& numbers, int64_t size) {
  return (numbers.detach() * 16).to(at::kLong).remainder(2 * size) - size;
}

/// self[..., numbers, ...]: the tensors after `t[0]` in the places of `dims`.
Indices at_dims(const Tensors& t, const std::vector<int64_t>& dims) {
  Indices indices;
  indices.resize(dims.back() + 1);
  for (size_t i = 0; i < dims.size(); ++i) indices.set(dims[i], indices_in(t[i + 1], t[0].size(dims[i])));
  return indices;
}

struct Case {
  Dims self;
  std::vector<Dims> indices;
  std::vector<int64_t> dims;
  Dims values;  // of index_put

  std::vector<Dims> sizes(bool with_values) const {
    std::vector<Dims> all{self};
    all.insert(all.end(), indices.begin(), indices.end());
    if (with_values) all.push_back(values);
    return all;
  }
};

const std::vector<Case> kCases = {
    {{10, 3}, {{7}}, {0}, {7, 3}},
    {{10, 3}, {{4, 2}}, {0}, {4, 2, 1}},
    {{3, 10}, {{5}}, {1}, {3, 5}},
    {{4, 5, 3}, {{6}, {6}}, {0, 1}, {6, 3}},
    {{3, 4, 5}, {{4, 1}, {3}}, {1, 2}, {3, 4, 3}},
    {{4, 2, 5}, {{3}, {3}}, {0, 2}, {3, 2}},
    {{5}, {{}}, {0}, {}},
    {{5, 2}, {{0}}, {0}, {0, 2}},
    {{1, 3}, {{4}}, {0}, {1}},
};

TEST(IndexTest, RulesSayWhatTheyAre) {
  EXPECT_EQ(to_string(rule("shardwise::index")), "index linear in the first");
  EXPECT_EQ(to_string(rule("shardwise::put_")), "put");
}

TEST(IndexTest, AnySelfAndAnyIndicesAreDense) {
  for (const Case& c : kCases)
    expect_same_as_dense("index", [&](const Tensors& t) { return at::index(t[0], at_dims(t, c.dims)); }, c.sizes(false),
                         {.max_combinations = 20});
}

TEST(IndexTest, AnyValuesAreAddedAsDenseOnes) {
  for (const Case& c : kCases)
    expect_same_as_dense("index_put, accumulating",
                         [&](const Tensors& t) { return at::index_put(t[0], at_dims(t, c.dims), t.back(), true); },
                         c.sizes(true), {.max_combinations = 20});
}

TEST(IndexTest, AnyValuesAreWrittenAsDenseOnes) {
  const auto written = [](const Tensors& t) {
    return at::index_put(t[0], {t[1].detach().argsort(/*stable=*/true, 0)}, t[2]);
  };
  expect_same_as_dense("index_put", written, {{7, 3}, {7}, {7, 3}});
  expect_same_as_dense("index_put", written, {{9, 3}, {5}, {1}});
  const auto in_place = [](const Tensors& t) {
    at::Tensor self = t[0].clone();
    Indices indices;
    indices.resize(2);
    indices.set(1, t[1].detach().argsort(/*stable=*/true, 0));
    return self.index_put_(indices, t[2]).mul(2);
  };
  expect_same_as_dense("index_put_", in_place, {{3, 7}, {5}, {3, 5}});
}

TEST(IndexTest, BoolsAreFoundInWindows) {
  const auto bools = [](const Tensors& t) { return at::index(t[0].gt(0), {indices_in(t[1], 7)}); };
  expect_same_as_dense("index of bools", bools, {{7, 3}, {5}}, {.with_grad = false});
}

TEST(IndexTest, GradientsAreDifferentiable) {
  const auto second = [](const Tensors& t) {
    const at::Tensor found = at::index(t[0], {indices_in(t[1], 6)});
    return torch::autograd::grad({found.mul(found).mul(found).sum()}, {t[0]}, {}, true, /*create_graph=*/true)[0];
  };
  expect_same_as_dense("index", second, {{6, 3}, {8}}, {.is_exact = false});
}

TEST(IndexTest, RowsAndTheirGradientsDoNotMove) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({4}, {2, 0, 3, 1});
    const auto table = lay_out(at::rand({8, 16}), mesh, {Placement::shard(0, {1, 3, 0, 4})}).requires_grad_();
    const auto ids = lay_out(at::arange(-8, 8), mesh, {kReplicate});
    CommTrace trace;
    for (const auto& rows : {at::index(table, {ids}), at::index_select(table, 0, ids.abs().remainder(8))}) {
      EXPECT_TRUE(spec_of(rows)->placements()[0].is_partial());
      const auto grad = torch::autograd::grad({rows}, {table}, {lay_out(at::ones({16, 16}), mesh, {kReplicate})})[0];
      EXPECT_EQ(spec_of(grad), spec_of(table));
      EXPECT_EQ(maybe_dtensor(grad)->shards()[0].storage().nbytes(), maybe_dtensor(table)->shards()[0].numel() * 4);
    }
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(IndexTest, AGatheredLookupIsGoodForTheNextOne) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {1, 2, 0});
    const auto dense = at::rand({7, 4}, at::kDouble).fill_(1).cumsum(0).requires_grad_();
    const auto table = lay_out(dense.detach(), mesh, {kRows}).requires_grad_();
    const auto ids = at::arange(7).flip(0), own = lay_out(ids, mesh, {kReplicate});
    const auto first = at::index(table, {own});
    const auto gathered = redistribute(first, {kReplicate});
    const auto ours = gathered.mul(first).add(at::index(table, {own})).add(gathered.relu());
    const auto rows = at::index(dense, {ids}), theirs = rows.mul(rows).add(rows).add(rows.relu());
    EXPECT_TRUE(full_tensor(ours).equal(theirs));
    ours.sum().backward();
    theirs.sum().backward();
    EXPECT_TRUE(full_tensor(table.grad()).equal(dense.grad()));
  });
}

TEST(IndexTest, EachRankWritesItsOwnRows) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({4}, {3, 1, 0, 2});
    const auto dense = at::arange(24, at::kDouble).view({8, 3});
    const auto ids = at::arange(-1, 3) * 2, values = at::arange(12, at::kDouble).view({4, 3}).neg();
    for (const Placement& placement : {Placement::shard(0, {1, 3, 0, 4}), kRows, kColumns, kReplicate})
      for (bool accumulate : {false, true}) {
        auto self = lay_out(dense.clone(), mesh, {placement});
        const SpecPtr before = spec_of(self);
        const auto own = lay_out(ids, mesh, {kReplicate}), of_ids = lay_out(values, mesh, {kReplicate});
        CommTrace trace;
        self.index_put_({own}, of_ids, accumulate);
        const auto result = at::index_put(self, {own}, of_ids, accumulate);
        EXPECT_EQ(trace.total_count(), 0);
        EXPECT_EQ(spec_of(self), before);
        const auto once = dense.index_put({ids}, values, accumulate);
        EXPECT_TRUE(full_tensor(self).equal(once));
        EXPECT_TRUE(full_tensor(result).equal(once.index_put({ids}, values, accumulate)));
      }
  });
}

TEST(IndexTest, ShardedIndicesGiveShardedResultsAndPartialGradients) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto table = lay_out(at::rand({6, 4}), mesh, {kReplicate}).requires_grad_();
    const auto rows = at::index(table, {lay_out(at::arange(5), mesh, {kRows})});
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_shard(0));
    const auto grad = torch::autograd::grad({rows}, {table}, {at::ones_like(rows)})[0];
    EXPECT_TRUE(spec_of(grad)->placements()[0].is_partial());
  });
}

TEST(IndexTest, MasksStandForTheirDims) {
  // self, mask, dims before the mask
  const std::vector<std::tuple<Dims, Dims, int64_t>> cases = {
      {{5, 3}, {5}, 0}, {{5, 3}, {5, 3}, 0}, {{2, 5, 3}, {5}, 1}, {{2, 5, 3}, {5, 3}, 1}, {{4, 1}, {4}, 0}};
  run_ranks(4, [&](World&) {
    const auto mesh = make_mesh({4}, {3, 1, 0, 2}), grid = make_mesh({2, 2}, {3, 1, 0, 2});
    std::mt19937 random(3);
    for (const auto& [sizes, mask_sizes, before] : cases)
      for (int round = 0; round < 20; ++round) {
        const MeshPtr& on = round % 2 ? mesh : grid;
        const auto numbers = at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
        const auto mask = at::arange(c10::multiply_integers(mask_sizes)).mul(7).remainder(5).view(mask_sizes).lt(3);
        const auto dense = numbers.clone().requires_grad_();
        const auto self = lay_out(numbers, on, random_placements(sizes, on->grid(), random)).requires_grad_();
        const auto own = lay_out(mask, on, random_placements(mask_sizes, on->grid(), random, false));
        Indices ours, theirs;
        ours.resize(before + 1);
        theirs.resize(before + 1);
        ours.set(before, own);
        theirs.set(before, mask);
        const auto found = at::index(self, ours), expected = at::index(dense, theirs);
        EXPECT_EQ(found.sizes(), expected.sizes());
        EXPECT_TRUE(full_tensor(found).equal(expected));
        found.mul(found).sum().backward();
        expected.mul(expected).sum().backward();
        EXPECT_TRUE(full_tensor(self.grad()).equal(dense.grad()));
        dense.mutable_grad().reset();
        const auto written = at::index_put(self, ours, at::full({}, -1.5, at::kDouble));
        EXPECT_TRUE(full_tensor(written).equal(at::index_put(dense, theirs, at::full({}, -1.5, at::kDouble))));
      }
  });
}

TEST(IndexTest, ANumberIsWrittenWhereAMaskIsTrueWithoutMessages) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({2}, {2, 0});  // rank 1 is outside
    const at::Tensor dense = at::arange(20, at::kDouble).view({5, 4});
    at::Tensor x = lay_out(dense, mesh, {kRows});
    const CommTrace trace;
    x.index_put_({x.gt(7)}, at::full({}, -1.0, at::kDouble));
    EXPECT_EQ(trace.total_count(), 0);
    const at::Tensor whole = full_tensor(x);
    EXPECT_TRUE(!mesh->is_member() || whole.equal(dense.masked_fill(dense.gt(7), -1)));
  });
}

std::string error_of(const at::Tensor& ids, const Placement& of_table, const Placement& of_ids) {
  return error_of_ranks(3, [&](World&) {
    const auto mesh = make_mesh({3});
    at::index(lay_out(at::rand({10, 4}), mesh, {of_table}), {lay_out(ids, mesh, {of_ids})});
  });
}

TEST(IndexTest, IndicesOutOfRangeNameTheWorstOnEveryRank) {
  for (const Placement& of_table : {kRows, kColumns, kReplicate})
    for (const Placement& of_ids : {kRows, kReplicate}) {
      expect_error("index 10 is out of bounds for dimension 0 with size 10. Use indices in [-10, 10).",
                   error_of(at::tensor({0, 10, 9}), of_table, of_ids));
      expect_error("index -11 is out of bounds", error_of(at::tensor({-11, 9, -10}), of_table, of_ids));
    }
}

TEST(IndexTest, ReplicatedIndicesAreCheckedWithoutAMessage) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto table = lay_out(at::rand({10, 4}), mesh, {kRows});
    const CommTrace trace;
    EXPECT_THROW(at::index(table, {lay_out(at::tensor({10}), mesh, {kReplicate})}), c10::IndexError);
    EXPECT_THROW(at::index_select(table, 0, lay_out(at::tensor({-1}), mesh, {kReplicate})), c10::IndexError);
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(IndexTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const std::function<void(const at::Tensor&, const MeshPtr&)>& use) {
    return error_of_ranks(2, [&](World&) {
      const auto mesh = make_mesh({2});
      use(lay_out(at::rand({4, 3}), mesh, {kRows}), mesh);
    });
  };
  expect_error("too many indices for tensor of dimension 2 (got 3)", error([](const at::Tensor& x, const MeshPtr& m) {
                 const auto i = lay_out(at::arange(2), m, {kReplicate});
                 at::index(x, {i, i, i});
               }));
  expect_error("could not be broadcast together with shapes [2], [3]", error([](const at::Tensor& x, const MeshPtr& m) {
                 at::index(x, {lay_out(at::arange(2), m, {kReplicate}), lay_out(at::arange(3), m, {kReplicate})});
               }));
  expect_error(
      "tensors used as indices must be long, int, byte or bool",
      error([](const at::Tensor& x, const MeshPtr& m) { at::index(x, {lay_out(at::rand({2}), m, {kReplicate})}); }));
  expect_error("The shape of the mask [3] at index 0 does not match", error([](const at::Tensor& x, const MeshPtr& m) {
                 at::index(x, {lay_out(at::ones({3}, at::kBool), m, {kReplicate})});
               }));
  expect_error("shape mismatch: value tensor of shape [5] cannot be broadcast to indexing result of shape [2, 3]",
               error([](const at::Tensor& x, const MeshPtr& m) {
                 at::index_put(x, {lay_out(at::arange(2), m, {kReplicate})}, lay_out(at::rand({5}), m, {kReplicate}));
               }));
  expect_error("source and destination dtypes match", error([](const at::Tensor& x, const MeshPtr& m) {
                 at::index_put(x, {lay_out(at::arange(2), m, {kReplicate})}, lay_out(at::arange(3), m, {kReplicate}));
               }));
}

TEST(IndexTest, PlainIndicesAreReplicas) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto dense = at::arange(12).view({4, 3}), ids = at::tensor({3, 0, -1});
    EXPECT_TRUE(full_tensor(at::index(lay_out(dense, mesh, {kRows}), {ids})).equal(at::index(dense, {ids})));
  });
}

}  // namespace
}  // namespace shardwise::index_test
