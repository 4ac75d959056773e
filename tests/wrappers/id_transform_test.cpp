// Raw ids to rows, over ranks as threads: the same on any number of ranks, what is sent, rows that start anew, errors.
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"
#include "wrappers/id_transform/exact_mapping.h"
#include "wrappers/id_transform/modulo_hash.h"

#include <ATen/ATen.h>

#include <random>

namespace shardwise::id_transform_test {
namespace {

/// Ids of all ranks in each step: many, of which some come again.
std::vector<at::Tensor> steps_of(int n_steps) {
  std::mt19937_64 random(1);
  std::vector<at::Tensor> steps;
  for (int step = 0; step < n_steps; ++step) {
    const at::Tensor ids = at::empty({14}, at::kLong);
    for (int64_t i = 0; i < ids.numel(); ++i) ids[i] = static_cast<int64_t>(random() % 70 * 0x9e3779b97f4a7c15);
    steps.push_back(ids);
  }
  return steps;
}

/// The rows of every step, then ids, last_used and counts.
std::vector<at::Tensor> on_ranks(int64_t n_ranks, const std::vector<at::Tensor>& steps) {
  return on_each_rank(n_ranks, [&](World& world) {
    const MeshPtr mesh = make_mesh({n_ranks});
    ExactMapping mapping({.n_rows = 33, .n_buckets = 2, .default_row = 4}, mesh);
    const IdMappingState state = mapping.new_state();
    std::vector<at::Tensor> found;
    for (const at::Tensor& ids : steps) {
      const at::Tensor own = ids.tensor_split(n_ranks)[world.rank()];
      const at::Tensor rows = mapping.transform(state, own, true);
      EXPECT_EQ(rows.sizes(), own.sizes());
      const at::Tensor all = at::full({ids.numel()}, -1, at::kLong);
      all.tensor_split(n_ranks)[world.rank()].copy_(rows);
      found.push_back(full_tensor(from_local(all, mesh, {Placement::partial(Reduce::kMax)})));
    }
    for (const at::Tensor& each : {state.ids, state.last_used, state.counts}) found.push_back(full_tensor(each));
    return found;
  })[0];
}

TEST(IdTransformTest, RowsDoNotDependOnTheNumberOfRanks) {
  const auto steps = steps_of(20);
  const auto alone = on_ranks(1, steps);
  for (const int64_t n_ranks : {2, 3, 4}) {
    const auto found = on_ranks(n_ranks, steps);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], alone[i])) << n_ranks << " ranks, " << i;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_TRUE(alone[i].ne(4).all().item<bool>()) << "the default row is nobody's";
    for (int64_t k = 0; k < 14; ++k)
      for (int64_t j = 0; j < k; ++j)
        EXPECT_EQ(steps[i][k].equal(steps[i][j]), alone[i][k].equal(alone[i][j])) << "each id one row, each row one id";
  }
}

TEST(IdTransformTest, StateAndTablesAreShardedByWholeBuckets) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const ExactMapping mapping({.n_rows = 22, .n_buckets = 4}, mesh);  // buckets of 6, 6, 5 and 5 rows
    EXPECT_EQ(to_string(mapping.placements()), "[Shard(0, sizes=[12, 5, 5])]");
    EXPECT_EQ(ExactMapping({.n_rows = 1000}, mesh).options().n_buckets, 3);
  });
}

TEST(IdTransformTest, ReassignedRowsAreFilledAlikeInAllLayouts) {
  const auto filled = [](int64_t n_ranks, const std::optional<Placement>& placement, const RowFill& fill) {
    return on_each_rank(n_ranks, [&](World&) {
      const MeshPtr mesh = make_mesh({n_ranks});
      ExactMapping mapping({.n_rows = 33, .n_buckets = 2}, mesh);
      const IdMappingState state = mapping.new_state();
      const at::Tensor table =
          full({33, 5}, 7, mesh, placement ? Placements{*placement} : mapping.placements(), at::kDouble);
      for (const at::Tensor& ids : steps_of(6)) {
        mapping.transform(state, replica_of(ids, mesh), true);
        mapping.reset_rows(table, fill);
      }
      EXPECT_GT(mapping.n_reassigned(), 0);
      return full_tensor(table);
    })[0];
  };
  for (const RowFill& fill : {RowFill{Fill::kNormal, 0.5, 3}, RowFill{Fill::kUniform, 0.5, 3}, RowFill{}}) {
    const at::Tensor dense = filled(1, {}, fill);
    EXPECT_TRUE(dense.ne(7).any().item<bool>() && dense.eq(7).any().item<bool>());
    for (const auto& placement : std::vector<std::optional<Placement>>{
             {}, Placement::shard(0), Placement::shard(1), Placement::replicate(), Placement::shard(0, {1, 32, 0})})
      EXPECT_TRUE(at::equal(filled(3, placement, fill), dense));
  }
}

TEST(IdTransformTest, ErrorsAreRaisedOnAllRanks) {
  const auto error = [](const ExactMappingOptions& options, const at::Tensor& first, const at::Tensor& others) {
    return error_of_ranks(2, [&](World& world) {
      ExactMapping mapping(options, make_mesh({2}));
      std::string text;
      try {
        mapping.transform(mapping.new_state(), world.rank() == 0 ? first : others, true);
      } catch (const c10::Error& raised) {
        text = raised.what_without_backtrace();
      }
      TORCH_CHECK(text.empty(), text);
      EXPECT_TRUE(false) << "rank " << world.rank() << " raised nothing";
    });
  };
  const at::Tensor ids = at::arange(30);
  expect_error("ids of rank 1 are Double", error({.n_rows = 90}, ids, ids.to(at::kDouble)));
  expect_error("a step has 30 ids of bucket 0, which can hold 29", error({.n_rows = 30}, ids, ids.narrow(0, 0, 0)));
  expect_error("default_row is 30 of a table of 30 rows", error({.n_rows = 30, .default_row = 30}, ids, ids));
}

TEST(IdTransformTest, HashedRowsAreInRangeAndKeepTheirPlaces) {
  const at::Tensor ids = at::arange(-50, 50).view({20, 5}), rows = modulo_hash(ids, 13, 1);
  EXPECT_TRUE(rows.ge(0).logical_and(rows.lt(13)).all().item<bool>());
  run_ranks(3, [&](World&) {
    const at::Tensor sharded = distribute_tensor(ids, make_mesh({3}), {Placement::shard(0)});
    EXPECT_TRUE(at::equal(full_tensor(modulo_hash(sharded, 13, 1)), rows));
  });
}

}  // namespace
}  // namespace shardwise::id_transform_test
