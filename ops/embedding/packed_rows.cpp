#include "ops/embedding/packed_rows.h"

#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {

at::Tensor codes_in(const at::Tensor& words, int64_t width) { return words.view(at::kByte).narrow(1, 0, width); }

at::Tensor scales_and_offsets_in(const at::Tensor& words) {
  return words.narrow(1, words.size(1) - 2, 2).view(at::kFloat);
}

at::Tensor pack_rows(const at::Tensor& rows, const at::Tensor& ranges) {
  const int64_t width = rows.size(1),
                n_at_once = std::max<int64_t>((int64_t{1} << 18) / std::max<int64_t>(width, 1), 1);
  at::Tensor words = at::zeros({rows.size(0), kernels::packed_words(width)}, rows.options().dtype(at::kInt));
  for (int64_t begin = 0; begin < rows.size(0); begin += n_at_once) {
    const int64_t n = std::min(n_at_once, rows.size(0) - begin);
    const at::Tensor least = ranges.narrow(0, begin, n).select(1, 0), largest = ranges.narrow(0, begin, n).select(1, 1);
    const at::Tensor scale = largest / 255 - least / 255;  // not (largest - least) / 255, which may overflow
    const auto per_row = [](const at::Tensor& numbers) { return numbers.to(at::kDouble).unsqueeze(1); };
    const at::Tensor steps = rows.narrow(0, begin, n).to(at::kDouble).sub(per_row(least)).div_(per_row(scale));
    const at::Tensor codes = at::where(per_row(scale).gt(0), steps.round_().clamp_(0, 255), 0.0);
    const at::Tensor into = words.narrow(0, begin, n);
    codes_in(into, width).copy_(codes);
    scales_and_offsets_in(into).copy_(at::stack({scale, least}, 1));
  }
  return words;
}

void lookup_packed_rows_into(const at::Tensor& results, const at::Tensor& words, const at::Tensor& ids,
                             int64_t first_row) {
  if (results.numel() == 0) return;
  const at::Tensor all_ids = ids.contiguous();
  const kernels::PackedRows table{const_memory_of(words), first_row, words.size(0), results.size(-1)};
  const kernels::Ids wanted = ids_of(all_ids);
  const kernels::Element element = element_of(results.scalar_type());
  const int64_t step = results.stride(-2);
  void* into = memory_of(results);
  run_parts(words.device(), wanted.n, row_bytes(table.width, element),
            [&](auto... where) { kernels::look_up_packed(table, wanted, element, into, step, where...); });
}

at::Tensor pool_packed_rows(const at::Tensor& words, int64_t width, at::ScalarType dtype, int64_t first_row,
                            const IdBags& bags, kernels::Pooling pooling, at::Tensor* chosen) {
  at::Tensor results = at::empty({bags.offsets.numel(), width}, words.options().dtype(dtype));
  if (chosen != nullptr) *chosen = at::empty(results.sizes(), numbers_like(words));
  const kernels::PackedRows table{const_memory_of(words), first_row, words.size(0), width};
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::Bags raw_bags = bags_of(bags);
  const kernels::Element element = element_of(dtype);
  void* into = memory_of(results);
  auto* places = chosen == nullptr ? nullptr : memory_of<int64_t>(*chosen);
  run_parts(words.device(), raw_bags.n, row_bytes(width, element) * ids_per_bag(raw_bags), [&](auto... where) {
    kernels::pool_packed(table, ids, raw_bags, pooling, element, into, places, where...);
  });
  return results;
}

}  // namespace shardwise
