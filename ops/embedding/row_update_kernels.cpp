// ops/embedding/row_update_kernels.cpp: the functions of row_kernels.h for optimizers.
#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

namespace shardwise {
namespace {

/// `rows`: with_dense_rows(piece.rows).
kernels::UpdatedPiece updated_piece_of(const UpdatedRows& piece, const at::Tensor& rows) {
  const auto memory = [&](size_t i) {
    return i < piece.state.size() && piece.state[i].defined() ? memory_of(piece.state[i]) : nullptr;
  };
  return {rows_of(rows, piece.first_row), {memory(0), memory(1), piece.rows_are_groups}, piece.update};
}

kernels::RowTotals totals_of(const RowSums& sums) {
  const auto numbers = [](const at::Tensor& tensor) {
    return tensor.defined() ? const_memory_of<double>(tensor) : nullptr;
  };
  return {numbers(sums.mean_squares), numbers(sums.ratios)};
}

}  // namespace

at::Tensor grad_squares(const RowGrads& grads, const IdGroups& groups, const at::Tensor& rows, double l2) {
  at::Tensor squares = at::empty({groups.n(), 1}, grads.values.options().dtype(at::kDouble));
  const kernels::GradRows grad_rows = grad_rows_of(grads);
  kernels::UpdatedPiece piece{{}, {}, {}};
  const at::Tensor dense = l2 == 0 ? rows : with_dense_rows(rows);
  if (l2 != 0) piece = {rows_of(dense, 0), {}, {}};
  piece.table.width = grad_rows.width;
  piece.update.l2 = l2;
  const int64_t* numbers = numbers_of(groups.rows);
  auto* into = memory_of<double>(squares);
  run_sums(grad_rows, groups, groups.n(), row_bytes(grad_rows), [&](const kernels::Groups& all, auto... where) {
    kernels::grad_squares(piece, grad_rows, all, numbers, into, where...);
  });
  return squares;
}

at::Tensor lamb_squares(const UpdatedRows& piece, const RowGrads& grads, const IdGroups& groups,
                        const at::Tensor& mean_squares) {
  at::Tensor squares = at::empty({groups.n(), 2}, grads.values.options().dtype(at::kDouble));
  const kernels::GradRows grad_rows = grad_rows_of(grads);
  const at::Tensor rows = with_dense_rows(piece.rows);
  const kernels::UpdatedPiece updated = updated_piece_of(piece, rows);
  const kernels::RowTotals totals = totals_of({mean_squares, {}});
  const int64_t* numbers = numbers_of(groups.rows);
  auto* into = memory_of<double>(squares);
  run_sums(grad_rows, groups, groups.n(), 4 * row_bytes(grad_rows), [&](const kernels::Groups& all, auto... where) {
    kernels::lamb_squares(updated, grad_rows, all, numbers, totals, into, where...);
  });
  return squares;
}

void update_rows(c10::ArrayRef<UpdatedRows> pieces, const RowGrads& grads, const IdGroups& groups,
                 const RowSums& sums) {
  std::vector<kernels::UpdatedPiece> updated;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // dense copies, and the rows that they are copies of
  const kernels::GradRows grad_rows = grad_rows_of(grads);
  for (const UpdatedRows& piece : pieces) {
    if (piece.rows.size(0) == 0) continue;
    const at::Tensor rows = with_dense_rows(piece.rows);
    if (!rows.is_same(piece.rows)) copies.emplace_back(rows, piece.rows);
    updated.push_back(updated_piece_of(piece, rows));
    TORCH_INTERNAL_ASSERT(
        updated.back().table.width == grad_rows.width && updated.back().table.element == grad_rows.element,
        "pieces that are updated in one call have the gradients' width and dtype");
  }
  const kernels::RowTotals totals = totals_of(sums);
  const int64_t* numbers = numbers_of(groups.rows);
  kernels::UpdatedPieces all_pieces{updated.data(), static_cast<int64_t>(updated.size())};
  at::Tensor there;
  if (groups.rows.is_cuda() && updated.size() > 1) {
    const auto n_bytes = static_cast<int64_t>(updated.size() * sizeof(kernels::UpdatedPiece));
    there = at::from_blob(updated.data(), {n_bytes}, at::kByte).to(groups.rows.device());
    all_pieces.there = static_cast<const kernels::UpdatedPiece*>(const_memory_of(there));
  }
  run_sums(grad_rows, groups, groups.n(), 4 * row_bytes(grad_rows), [&](const kernels::Groups& all, auto... where) {
    kernels::update_rows(all_pieces, grad_rows, all, numbers, totals, where...);
  });
  for (const auto& [copy, rows] : copies) rows.copy_(copy);
}

}  // namespace shardwise
