// ops/embedding/piece_kernels.cpp: what row_kernels.h says of lookups in several pieces.
#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <limits>
#include <vector>

namespace shardwise {
namespace {

/// The kernels' view of pieces, without those that have no rows.
struct PieceViews {
  std::vector<at::Tensor> held;
  std::vector<kernels::Rows> rows;

  PieceViews(c10::ArrayRef<TablePiece> pieces, kernels::Element element) {
    for (const TablePiece& piece : pieces) {
      TORCH_INTERNAL_ASSERT(
          piece.rows.size(1) == pieces[0].rows.size(1) && piece.rows.scalar_type() == pieces[0].rows.scalar_type(),
          "pieces that are looked up in one call have one width and dtype");
      if (piece.rows.size(0) == 0) continue;
      held.push_back(with_dense_rows(piece.rows));
      rows.push_back(rows_of(held.back(), piece.first_row, element));
    }
    if (rows.empty()) rows.push_back(rows_of(pieces[0].rows, pieces[0].first_row, element));
  }
  kernels::Pieces view() const { return {rows.data(), static_cast<int64_t>(rows.size())}; }
};

const kernels::Rows* rows_in(const at::Tensor& there) {
  return static_cast<const kernels::Rows*>(there.const_data_ptr());
}

}  // namespace

at::Tensor lookup_rows(c10::ArrayRef<TablePiece> pieces, const at::Tensor& ids) {
  const at::Tensor& any = pieces[0].rows;
  TORCH_INTERNAL_ASSERT(any.element_size() >= 2 && any.element_size() <= 8, "tables of ", any.scalar_type());
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(any.size(1));
  at::Tensor results = at::empty(shape, any.options());
  if (results.numel() == 0) return results;
  const PieceViews views(pieces, element_of_copies(any));
  const at::Tensor all_ids = ids.contiguous();
  const kernels::Ids wanted = ids_of(all_ids);
  const int64_t width = any.size(1);
  void* into = results.mutable_data_ptr();
  run_parts(
      any.device(), wanted.n, row_bytes(views.rows[0]),
      [&](int64_t begin, int64_t end) {
        kernels::look_up(views.view(), wanted, kernels::Miss::kZero, into, width, begin, end);
      },
      [&](auto stream) {
        const at::Tensor there = on_device(views.rows, any);
        cuda::look_up(views.view(), rows_in(there), wanted, kernels::Miss::kZero, into, width, stream);
      });
  return results;
}

at::Tensor pool_rows(c10::ArrayRef<TablePiece> pieces, const IdBags& bags, kernels::Pooling pooling,
                     at::Tensor* chosen) {
  const at::Tensor& any = pieces[0].rows;
  at::Tensor results = at::empty({bags.offsets.numel(), any.size(1)}, any.options());
  if (chosen != nullptr) *chosen = at::empty(results.sizes(), numbers_like(any));
  const PieceViews views(pieces, element_of(any.scalar_type()));
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::Bags raw_bags = bags_of(bags);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  void* into = results.mutable_data_ptr();
  auto* places = chosen == nullptr ? nullptr : chosen->mutable_data_ptr<int64_t>();
  run_parts(
      any.device(), raw_bags.n, row_bytes(views.rows[0]) * ids_per_bag(raw_bags),
      [&](int64_t begin, int64_t end) {
        kernels::pool(views.view(), ids, raw_bags, pooling, kNone, into, places, begin, end);
      },
      [&](auto stream) {
        const at::Tensor there = on_device(views.rows, any);
        cuda::pool(views.view(), rows_in(there), ids, raw_bags, pooling, kNone, into, places, stream);
      });
  return results;
}

}  // namespace shardwise
