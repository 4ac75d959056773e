// Several tables in one update, against a call for each.
#include "ops/embedding/row_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

namespace shardwise::row_update_kernels_test {
namespace {

using Method = kernels::UpdateMethod;

constexpr int64_t kWidth = 5;
constexpr int64_t kRows[] = {4, 0, 7, 3};    // of the tables, numbered one after the other ...
constexpr int64_t kFirst[] = {0, 4, 4, 13};  // ... with a gap, rows 11 and 12

std::vector<at::Tensor> tables(at::ScalarType dtype) {
  std::vector<at::Tensor> pieces;
  for (int t = 0; t < 4; ++t) {
    // Rows of the third are wider than what is updated: a slice of columns.
    const at::Tensor wide =
        at::arange(kRows[t] * 9, at::kFloat).view({kRows[t], 9}).add(t).remainder(11).sub(4).to(dtype);
    pieces.push_back(t == 2 ? wide.narrow(1, 2, kWidth) : wide.narrow(1, 0, kWidth).contiguous());
  }
  return pieces;
}

at::Tensor some_ids(at::ScalarType dtype) { return at::arange(40).mul(7).remainder(18).sub(1).to(dtype); }

TEST(RowUpdateKernelsTest, UpdatesAreThoseOfEachTable) {
  const Method methods[] = {Method::kRowWiseAdagrad, Method::kSgd, Method::kAdam, Method::kRowWiseLamb};
  const at::Tensor ids = some_ids(at::kLong);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const RowGrads grads{at::arange(40 * kWidth, at::kFloat).view({40, kWidth}).remainder(7).sub(3).div(4).to(dtype)};
    const auto state_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto made = [&] {
      std::vector<UpdatedRows> updated;
      for (const at::Tensor& rows : tables(dtype)) {
        const size_t t = updated.size();
        const auto state = [&](bool is_per_row) {
          return is_per_row ? at::full({kRows[t]}, 0.1, state_dtype) : at::full({kRows[t], kWidth}, 0.1, state_dtype);
        };
        updated.push_back({rows.clone(at::MemoryFormat::Contiguous),
                           {},
                           {methods[t], 0.1 * double(t + 1), 1e-3, 0.9, 0.99},
                           kFirst[t]});
        updated.back().update.l2 = 0.1;
        if (methods[t] != Method::kSgd) updated.back().state.push_back(state(methods[t] == Method::kRowWiseAdagrad));
        if (kernels::has_moments(methods[t])) updated.back().state.push_back(state(kernels::is_row_wise(methods[t])));
      }
      return updated;
    };
    const auto together = made(), apart = made();
    update_rows(together, grads, group_ids(ids, 0, 16));
    for (UpdatedRows table : apart) {
      const IdGroups groups = group_ids(ids, std::exchange(table.first_row, 0), table.rows.size(0));
      update_rows(table, grads, groups);
    }
    const auto before = tables(dtype);
    for (size_t t = 0; t < 4; ++t) {
      EXPECT_TRUE(together[t].rows.equal(apart[t].rows)) << t;
      EXPECT_EQ(together[t].rows.equal(before[t]), kRows[t] == 0) << t;
      for (size_t i = 0; i < together[t].state.size(); ++i)
        EXPECT_TRUE(together[t].state[i].equal(apart[t].state[i])) << t << " state " << i;
    }
  }
}

}  // namespace
}  // namespace shardwise::row_update_kernels_test
