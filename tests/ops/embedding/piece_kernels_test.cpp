// Several tables in one lookup and one update, against a call for each.
#include "ops/embedding/row_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::piece_kernels_test {
namespace {

using kernels::Pooling;
using Kind = kernels::UpdateKind;

constexpr int64_t kWidth = 5;
constexpr int64_t kRows[] = {4, 0, 7, 3};    // of the tables, numbered one after the other ...
constexpr int64_t kFirst[] = {0, 4, 4, 13};  // ... with a gap, rows 11 and 12

std::vector<TablePiece> tables(at::ScalarType dtype) {
  std::vector<TablePiece> pieces;
  for (int t = 0; t < 4; ++t) {
    // Rows of the third are wider than what is looked up: a slice of columns.
    const at::Tensor wide =
        at::arange(kRows[t] * 9, at::kFloat).view({kRows[t], 9}).add(t).remainder(11).sub(4).to(dtype);
    pieces.push_back({t == 2 ? wide.narrow(1, 2, kWidth) : wide.narrow(1, 0, kWidth).contiguous(), kFirst[t]});
  }
  return pieces;
}

at::Tensor some_ids(at::ScalarType dtype) { return at::arange(40).mul(7).remainder(18).sub(1).to(dtype); }

/// The rows of all tables as one, zeros in the gap.
at::Tensor as_one(const std::vector<TablePiece>& pieces) {
  at::Tensor all = at::zeros({16, kWidth}, pieces[0].rows.options());
  for (const TablePiece& piece : pieces) all.narrow(0, piece.first_row, piece.rows.size(0)).copy_(piece.rows);
  return all;
}

TEST(PieceKernelsTest, LookupsAreThoseOfOneTable) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const auto of_ids : {at::kInt, at::kLong}) {
      const auto pieces = tables(dtype);
      const at::Tensor all = as_one(pieces), ids = some_ids(of_ids);
      EXPECT_TRUE(lookup_rows(pieces, ids).equal(lookup_rows(all, ids, 0)));
      EXPECT_EQ(lookup_rows(pieces, ids.view({4, 10})).sizes(), (at::IntArrayRef{4, 10, kWidth}));
      EXPECT_EQ(lookup_rows(pieces, ids.narrow(0, 0, 0)).numel(), 0);
      const at::Tensor no_gap = ids.masked_fill(ids.ge(11).logical_and(ids.lt(13)), 2);
      for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kMax}) {
        const IdBags bags{no_gap, at::tensor({0, 0, 7, 30}, at::kLong), 3,
                          pooling == Pooling::kSum ? at::arange(40, at::kFloat).div(8).to(dtype) : at::Tensor()};
        at::Tensor chosen, of_all;
        EXPECT_TRUE(pool_rows(pieces, bags, pooling, &chosen).equal(pool_rows(all, 0, bags, pooling, &of_all)));
        if (pooling != Pooling::kMax) continue;
        EXPECT_TRUE(chosen.equal(of_all));
      }
    }
}

TEST(PieceKernelsTest, TablesWithoutRowsGiveZeros) {
  const std::vector<TablePiece> nothing{{at::empty({0, 3}), 0}, {at::empty({0, 3}), 0}};
  EXPECT_TRUE(lookup_rows(nothing, at::arange(2)).equal(at::zeros({2, 3})));
  EXPECT_ANY_THROW(lookup_rows({TablePiece{at::empty({2, 3}, at::kByte), 0}}, at::arange(2)));
}

TEST(PieceKernelsTest, UpdatesAreThoseOfEachTable) {
  const Kind kinds[] = {Kind::kRowWiseAdagrad, Kind::kSgd, Kind::kAdam, Kind::kRowWiseLamb};
  const at::Tensor ids = some_ids(at::kLong);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const RowGrads grads{at::arange(40 * kWidth, at::kFloat).view({40, kWidth}).remainder(7).sub(3).div(4).to(dtype)};
    const auto state_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto made = [&] {
      std::vector<UpdatedRows> updated;
      for (const TablePiece& piece : tables(dtype)) {
        const size_t t = updated.size();
        const auto state = [&](bool is_per_row) {
          return is_per_row ? at::full({kRows[t]}, 0.1, state_dtype) : at::full({kRows[t], kWidth}, 0.1, state_dtype);
        };
        updated.push_back({piece.rows.clone(at::MemoryFormat::Contiguous),
                           {},
                           {kinds[t], 0.1 * double(t + 1), 1e-3, 0.9, 0.99},
                           kFirst[t]});
        updated.back().update.l2 = 0.1;
        if (kinds[t] != Kind::kSgd) updated.back().state.push_back(state(kinds[t] == Kind::kRowWiseAdagrad));
        if (kernels::has_moments(kinds[t])) updated.back().state.push_back(state(kernels::is_row_wise(kinds[t])));
      }
      return updated;
    };
    const auto together = made(), apart = made();
    update_rows(together, grads, group_ids(ids, 0, 16));
    for (const UpdatedRows& table : apart)
      update_rows(table.rows, table.state, table.update, grads, group_ids(ids, table.first_row, table.rows.size(0)),
                  {});
    const auto before = tables(dtype);
    for (size_t t = 0; t < 4; ++t) {
      EXPECT_TRUE(together[t].rows.equal(apart[t].rows)) << t;
      EXPECT_EQ(together[t].rows.equal(before[t].rows), kRows[t] == 0) << t;
      for (size_t i = 0; i < together[t].state.size(); ++i)
        EXPECT_TRUE(together[t].state[i].equal(apart[t].state[i])) << t << " state " << i;
    }
  }
}

}  // namespace
}  // namespace shardwise::piece_kernels_test
