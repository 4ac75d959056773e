// Sparse tensors against dense ones over every kind of layout; what their entries cost in messages; outside ranks.
#include "runtime/tensor/sparse.h"
#include "placements/placement_list.h"
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::sparse_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

/// Entries of rows 0, 2, 2, ..., uncoalesced, whose values are rows of `tensor`, laid out as it.
at::Tensor sparse_like(const at::Tensor& tensor) {
  const int64_t n_rows = tensor.size(0);
  const at::Tensor rows = at::tensor(std::vector<int64_t>{0, 2, 2, 4, 2, 0}, at::kLong).remainder(n_rows);
  const auto make = [&](const at::Tensor& whole) {
    const at::Tensor there = rows.to(whole.device());
    return at::_sparse_coo_tensor_unsafe(there.unsqueeze(0), whole.index_select(0, there), whole.sizes());
  };
  if (!is_dtensor(tensor)) return make(tensor.detach());
  const SpecPtr& spec = spec_of(tensor);
  const at::Tensor whole = full_tensor(tensor.detach());
  const at::Tensor local = make(spec->is_member() ? whole : at::zeros(spec->sizes(), whole.options()));
  const Placements placements =
      spec->layout().joined_dim() ? without_boxes(spec->placements()) : spec->placements().vec();
  return redistribute(from_local(local, spec->mesh(), Placements(spec->placements().size())), placements);
}

at::Tensor coalesced(const at::Tensor& tensor) { return sparse_like(tensor).coalesce(); }

/// name, from two tensors of one shape.
struct Case {
  const char* name;
  at::Tensor (*compute)(const Tensors&);
};

TEST(SparseTest, AnyLayoutIsDense) {
  const std::vector<Case> cases = {
      {"to_dense", [](const Tensors& t) { return sparse_like(t[0]).to_dense(); }},
      {"coalesce", [](const Tensors& t) { return coalesced(t[0]).to_dense(); }},
      {"sparse + sparse", [](const Tensors& t) { return (sparse_like(t[0]) + sparse_like(t[1])).to_dense(); }},
      {"sparse - sparse", [](const Tensors& t) { return (coalesced(t[0]) - sparse_like(t[1])).to_dense(); }},
      {"dense + sparse", [](const Tensors& t) { return t[0].add(sparse_like(t[1]), 3); }},
      {"add_", [](const Tensors& t) { return t[0].clone().add_(sparse_like(t[1]), -2); }},
      {"sparse add_", [](const Tensors& t) { return sparse_like(t[0]).add_(sparse_like(t[1])).to_dense(); }},
      {"mul by a number", [](const Tensors& t) { return sparse_like(t[0]).mul_(4).div(2).neg().to_dense(); }},
      {"pow", [](const Tensors& t) { return sparse_like(t[0]).pow(2).to_dense(); }},
      {"sparse_mask", [](const Tensors& t) { return t[0].sparse_mask(coalesced(t[1])).to_dense(); }},
      {"to_sparse", [](const Tensors& t) { return t[0].to_sparse(2).to_dense(); }},
      {"sum", [](const Tensors& t) { return sparse_like(t[0]).sum(); }},
      {"values", [](const Tensors& t) { return sparse_like(t[0])._values().sum(0); }},
      {"put together again",
       [](const Tensors& t) {
         const at::Tensor sparse = sparse_like(t[0]);
         return at::sparse_coo_tensor(sparse._indices(), sparse._values() * 2, sparse.sizes()).to_dense();
       }},
      {"of computed indices",
       [](const Tensors& t) {
         const at::Tensor sparse = sparse_like(t[0]);
         return at::sparse_coo_tensor(sparse._indices() + 0, sparse._values(), sparse.sizes()).to_dense();
       }},
  };
  for (const Case& one : cases)
    expect_same_as_dense(one.name, one.compute, {{7, 5}, {7, 5}}, {.with_grad = false, .max_combinations = 24});
}

TEST(SparseTest, NormsAreOfAllEntriesOfAnIndex) {
  for (const double order : {1.0, 2.0, 3.0})
    expect_same_as_dense("norm", [=](const Tensors& t) { return sparse_like(t[0]).norm(order); }, {{7, 5}},
                         {.is_exact = false, .with_grad = false});
}

TEST(SparseTest, UnitsOfFewRowsOrNone) {
  for (const int64_t n_rows : {1, 2})
    expect_same_as_dense("few rows", [](const Tensors& t) { return t[0].add(sparse_like(t[1])); },
                         {{n_rows, 3}, {n_rows, 3}}, {.with_grad = false, .max_combinations = 12});
}

/// A sparse tensor of 6 rows on 3 ranks in the order 2, 0, 1; each rank has as many entries as its number.
at::Tensor by_rank(const MeshPtr& mesh, int64_t rank) {
  const auto spec = Spec::intern(mesh, {6, 2}, {kRows}, row_major_strides({6, 2}), at::kFloat);
  if (!mesh->is_member()) return wrap_sparse(spec, {});
  return wrap_sparse(spec, {at::_sparse_coo_tensor_unsafe(at::ones({1, rank}, at::kLong),
                                                          at::full({rank, 2}, rank, at::kFloat), {2, 2})});
}

TEST(SparseTest, CountsAreAgreedOnOnce) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({3}, {2, 0, 1});
    const at::Tensor sparse = by_rank(mesh, world.rank());
    EXPECT_TRUE(sparse.is_sparse());
    EXPECT_EQ(sparse.layout(), at::kSparse);
    EXPECT_EQ(sparse.is_coalesced(), false);
    CommTrace trace;
    EXPECT_EQ(sparse._nnz(), mesh->is_member() ? 3 : 0);
    EXPECT_EQ(trace.total_count(), mesh->is_member() ? 1 : 0);
    const at::Tensor values = sparse.mul(2)._values();
    const at::Tensor again = at::sparse_coo_tensor(sparse._indices(), values, sparse.sizes());
    at::Tensor table = full({6, 2}, 1, mesh, {kRows}, at::kFloat);
    table.add_(again);
    EXPECT_EQ(trace.total_count(), mesh->is_member() ? 1 : 0);
    EXPECT_EQ(spec_of(again), spec_of(sparse));
    if (!mesh->is_member()) return;
    EXPECT_EQ(to_string(spec_of(values)->placements()), "[Shard(0, sizes=[2, 0, 1])]");
    EXPECT_EQ(to_string(spec_of(sparse._indices())->placements()), "[Shard(1, sizes=[2, 0, 1])]");
    EXPECT_TRUE(at::equal(full_tensor(sparse._indices()), at::tensor({1, 1, 5}).unsqueeze(0)));
    const auto expected = at::tensor({1, 1, 9, 9, 1, 1, 1, 1, 1, 1, 3, 3}, at::kFloat).view({6, 2});
    EXPECT_TRUE(at::equal(full_tensor(table), expected)) << full_tensor(table);
  });
}

TEST(SparseTest, WritesAreSeenByAliases) {
  run_ranks(3, [](World& world) {
    const at::Tensor sparse = by_rank(make_mesh({3}), world.rank());
    const at::Tensor alias = sparse.detach();
    EXPECT_EQ(full_tensor(alias.sum()).item<float>(), 10);
    sparse.add_(sparse.clone());
    EXPECT_EQ(full_tensor(alias.sum()).item<float>(), 20);
    sparse.zero_();
    EXPECT_EQ(alias._nnz(), 0);
  });
}

TEST(SparseTest, AddingEntriesOfTheSameLayoutSendsNothing) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({3}, {2, 0, 1});
    const at::Tensor sparse = by_rank(mesh, world.rank());
    at::Tensor table = full({6, 2}, 1, mesh, {kRows}, at::kFloat);
    CommTrace trace;
    table.add_(sparse, -0.1);
    (sparse * 2).add_(sparse.coalesce()).to_dense();
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(SparseTest, ReplicasHaveEquallyManyEntries) {
  expect_error(
      "rank 1 holds 1 entries, but ranks with the same part hold 0", error_of_ranks(4, [](World& world) {
        const auto mesh = make_mesh({2, 2});
        const auto spec = Spec::intern(mesh, {6, 2}, {kRows, kColumns}, row_major_strides({6, 2}), at::kFloat);
        const at::Tensor indices = at::zeros({1, world.rank()}, at::kLong);
        wrap_sparse(spec, {at::_sparse_coo_tensor_unsafe(indices, at::ones({world.rank(), 1}), {3, 1})})._values();
      }));
}

}  // namespace
}  // namespace shardwise::sparse_test
