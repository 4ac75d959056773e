#include "ops/embedding/packed_rows.h"

#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>

#include <limits>

namespace shardwise {
namespace {

/// `words` are contiguous.
kernels::PackedRows packed_rows_of(const at::Tensor& words, int64_t first_row, int64_t width) {
  return {words.const_data_ptr(), first_row, words.size(0), width};
}

}  // namespace

at::Tensor pack_rows(const at::Tensor& rows, const at::Tensor& ranges) {
  const at::Tensor from = with_dense_rows(rows), of_rows = ranges.to(at::kFloat).contiguous();
  at::Tensor words = at::empty({rows.size(0), kernels::packed_words(rows.size(1))}, rows.options().dtype(at::kInt));
  const kernels::Rows table = rows_of(from, 0);
  const auto* range = of_rows.const_data_ptr<float>();
  void* into = words.mutable_data_ptr();
  run_parts(
      rows.device(), table.n_rows, row_bytes(table),
      [&](int64_t begin, int64_t end) { kernels::pack_rows(table, range, into, begin, end); },
      [&](auto stream) { cuda::pack_rows(table, range, into, stream); });
  return words;
}

void lookup_packed_rows_into(const at::Tensor& results, const at::Tensor& words, const at::Tensor& ids,
                             int64_t first_row) {
  if (results.numel() == 0) return;
  const at::Tensor all_ids = ids.contiguous();
  const kernels::PackedRows table = packed_rows_of(words, first_row, results.size(-1));
  const kernels::Ids wanted = ids_of(all_ids);
  const kernels::Element element = element_of(results.scalar_type());
  const int64_t step = results.stride(-2);
  void* into = results.mutable_data_ptr();
  run_parts(
      words.device(), wanted.n, row_bytes(table.width, element),
      [&](int64_t begin, int64_t end) {
        kernels::look_up_packed(table, wanted, kernels::Miss::kKeep, element, into, step, begin, end);
      },
      [&](auto stream) { cuda::look_up_packed(table, wanted, kernels::Miss::kKeep, element, into, step, stream); });
}

at::Tensor pool_packed_rows(const at::Tensor& words, int64_t width, at::ScalarType dtype, int64_t first_row,
                            const IdBags& bags, kernels::Pooling pooling, at::Tensor* chosen) {
  at::Tensor results = at::empty({bags.offsets.numel(), width}, words.options().dtype(dtype));
  if (chosen != nullptr) *chosen = at::empty(results.sizes(), numbers_like(words));
  const kernels::PackedRows table = packed_rows_of(words, first_row, width);
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::Bags raw_bags = bags_of(bags);
  const kernels::Element element = element_of(dtype);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  void* into = results.mutable_data_ptr();
  auto* places = chosen == nullptr ? nullptr : chosen->mutable_data_ptr<int64_t>();
  run_parts(
      words.device(), raw_bags.n, row_bytes(width, element) * ids_per_bag(raw_bags),
      [&](int64_t begin, int64_t end) {
        kernels::pool_packed(table, ids, raw_bags, pooling, kNone, element, into, places, begin, end);
      },
      [&](auto stream) { cuda::pool_packed(table, ids, raw_bags, pooling, kNone, element, into, places, stream); });
  return results;
}

}  // namespace shardwise
