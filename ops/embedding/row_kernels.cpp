#include "ops/embedding/row_kernels.h"

#include "ops/embedding/kernel_views.h"
#include "ops/support/planned_values.h"
#include "runtime/comm/memory_view.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

namespace shardwise {

RowGrads RowGrads::columns(int64_t begin, int64_t width) const {
  if (width == values.size(1)) return *this;
  return {narrowed(values, 1, begin, width), row_of, factors,
          chosen.defined() ? chosen.narrow(1, begin, width).contiguous() : chosen};
}

void RowGrads::scale(const at::Tensor& by) {
  const at::Tensor own = by.to(sum_type(values.scalar_type()));
  factors = factors.defined() ? factors * own : own;
}

namespace {

/// Copies into `results`, whose rows are `step` elements apart. False if there is no kernel for the dtype or the device.
bool copy_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row, kernels::Miss miss,
               const at::Tensor& results, int64_t step) {
  if (!has_kernels(rows.device()) || rows.element_size() < 2 || rows.element_size() > 8) return false;
  const at::Tensor from = with_dense_rows(rows), all_ids = ids.contiguous();
  const kernels::Rows table = rows_of(from, first_row, element_of_copies(rows));
  const kernels::Ids wanted = ids_of(all_ids);
  void* into = memory_of(results);
  run_parts(rows.device(), wanted.n, row_bytes(table),
            [&](auto... where) { kernels::look_up(table, wanted, miss, into, step, where...); });
  return true;
}

/// torch has few operators for float8, so their rows are copied as bytes.
bool copies_as_bytes(const at::Tensor& rows) { return rows.element_size() == 1 && rows.scalar_type() != at::kByte; }

}  // namespace

at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row) {
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(rows.size(1));
  if (ids.numel() == 0 || rows.numel() == 0) return at::zeros(shape, rows.options());
  if (copies_as_bytes(rows)) return lookup_rows(rows.view(at::kByte), ids, first_row).view(rows.scalar_type());
  at::Tensor results = at::empty(shape, rows.options());
  if (copy_rows(rows, ids, first_row, kernels::Miss::kZero, results, rows.size(1))) return results;
  const at::Tensor row = ids.reshape(-1) - first_row;
  const at::Tensor is_elsewhere = row.lt(0).logical_or_(row.ge(rows.size(0)));
  return rows.index_select(0, row.clamp(0, rows.size(0) - 1)).masked_fill_(is_elsewhere.unsqueeze(1), 0).view(shape);
}

void lookup_rows_into(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& ids, int64_t first_row) {
  if (ids.numel() == 0 || rows.numel() == 0) return;
  if (copies_as_bytes(rows)) return lookup_rows_into(results.view(at::kByte), rows.view(at::kByte), ids, first_row);
  if (copy_rows(rows, ids, first_row, kernels::Miss::kKeep, results, results.stride(0))) return;
  const at::Tensor row = ids.reshape(-1) - first_row;
  const at::Tensor here = row.ge(0).logical_and_(row.lt(rows.size(0))).nonzero().view(-1);
  results.index_copy_(0, here, rows.index_select(0, row.index_select(0, here)));
}

void assert_ids(const at::Tensor& ids, int64_t n_rows) {
  const at::Tensor all_ids = ids.contiguous();
  run_kernel(ids.device(), [] {}, [&](auto stream) { cuda::check_rows(ids_of(all_ids), n_rows, stream); });
}

int64_t digest_of_ids(const at::Tensor& ids) {
  if (ids.numel() == 0) return 0;
  const at::Tensor all_ids = ids.contiguous();
  const kernels::Ids all = ids_of(all_ids);
  return run_kernel(
      ids.device(),
      [&] {
        std::atomic<uint64_t> digest = 0;
        share_out(all.n, 8, [&](int64_t begin, int64_t end) { digest += kernels::digest_of(all, begin, end); });
        return static_cast<int64_t>(digest.load());
      },
      [&](auto stream) {
        const at::Tensor digest = at::empty({1}, numbers_like(ids));
        cuda::digest_of(all, reinterpret_cast<uint64_t*>(memory_of<int64_t>(digest)), stream);
        return digest.item<int64_t>();
      });
}

IdGroups group_ids(const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped, bool with_group_of,
                   std::optional<TableOfIds> table) {
  const at::Tensor flat = ids.reshape(-1).contiguous();
  const kernels::Ids all = ids_of(flat);
  const int64_t n = flat.numel();
  const auto options = numbers_like(ids);
  IdGroups groups{at::empty({n}, options), at::empty({n + 1}, options), at::empty({n}, options),
                  with_group_of ? at::empty({n}, options) : at::Tensor()};
  at::Tensor scratch;
  const auto memory_with_scratch = [&](int64_t n_words) {
    scratch = at::empty({n_words}, options);
    return kernels::GroupMemory{memory_of<int64_t>(groups.rows), memory_of<int64_t>(groups.starts),
                                memory_of<int64_t>(groups.order),
                                with_group_of ? memory_of<int64_t>(groups.group_of) : nullptr,
                                reinterpret_cast<uint64_t*>(memory_of<int64_t>(scratch))};
  };
  const auto n_planned = [&] {
    const Interval piece{table ? first_row : 0, (table ? first_row : 0) + n_rows};
    const auto among = table && !table->are_in_piece ? std::nullopt : std::optional(piece);
    const PlannedIds planned(n, table ? table->n_rows : n_rows, among);
    return planned.rows_below(piece.end) - planned.rows_below(piece.begin);
  };
  const int64_t n_groups =
      ids.is_meta()
          ? n_planned()
          : run_kernel(
                ids.device(),
                [&] { return kernels::group_ids(all, first_row, n_rows, skipped, memory_with_scratch(2 * n)); },
                [&](auto stream) {
                  return cuda::group_ids(all, first_row, n_rows, skipped, memory_with_scratch(cuda::group_scratch(n)),
                                         stream);
                });
  groups.rows = narrowed(groups.rows, 0, 0, n_groups);
  groups.starts = narrowed(groups.starts, 0, 0, n_groups + 1);
  return groups;
}

namespace {

/// One gradient row per id, for dtypes that the kernels do not support.
at::Tensor one_by_one(const RowGrads& grads) {
  at::Tensor values = grads.row_of.defined() ? grads.values.index_select(0, grads.row_of) : grads.values;
  return grads.factors.defined() ? values * grads.factors.unsqueeze(1) : values;
}

}  // namespace

at::Tensor sum_groups(const RowGrads& grads, const IdGroups& groups) {
  at::Tensor sums = at::empty({groups.n(), grads.values.size(1)}, grads.values.options());
  sum_groups_into(sums, grads, groups);
  return sums;
}

void sum_groups_into(const at::Tensor& sums, const RowGrads& grads, const IdGroups& groups) {
  if (!maybe_element(grads.values.scalar_type())) {
    const at::Tensor group_of =
        at::arange(groups.n(), groups.rows.options()).repeat_interleave(groups.starts.diff(), 0, groups.order.numel());
    sums.zero_().index_add_(0, group_of, one_by_one(grads).index_select(0, groups.order));
    return;
  }
  const kernels::GradRows rows = grad_rows_of(grads);
  void* into = memory_of(sums);
  run_sums(rows, groups, groups.n(), row_bytes(rows),
           [&](const kernels::Groups& all, auto... where) { kernels::sum_groups(rows, all, into, where...); });
}

namespace {

/// Zeros that the system gives when they are first touched, so that most of a large result costs nothing until somebody reads it.
at::Tensor untouched_zeros(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t n_bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  void* const memory = std::calloc(n_bytes + c10::gAlignment, 1);
  if (memory == nullptr) return at::zeros(sizes, options);
  void* begin = memory;
  size_t room = n_bytes + c10::gAlignment;
  std::align(c10::gAlignment, n_bytes, begin, room);
  c10::profiledCPUMemoryReporter().New(memory, n_bytes);  // so profiles count it
  const auto drop = [](void* of) {
    c10::profiledCPUMemoryReporter().Delete(of);
    std::free(of);
  };
  const c10::Storage storage(c10::Storage::use_byte_size_t(), n_bytes, c10::DataPtr(begin, memory, drop, at::kCPU));
  return at::empty({0}, options).set_(storage, 0, sizes);
}

/// True if a result on the CPU is large, and most of its rows are zeros.
bool stays_untouched(const at::Tensor& values, int64_t n_written, int64_t n_rows) {
  constexpr int64_t kLarge = 1 << 20;  // bytes; malloc takes larger ones from the system
  return values.is_cpu() && 8 * n_written < n_rows && n_rows * values.size(1) * values.element_size() >= kLarge;
}

}  // namespace

at::Tensor sum_rows(const RowGrads& grads, const IdGroups& groups, int64_t n_rows) {
  const std::vector<int64_t> sizes{n_rows, grads.values.size(1)};
  const bool is_untouched = stays_untouched(grads.values, groups.n(), n_rows);
  if (is_untouched || !maybe_element(grads.values.scalar_type())) {
    const at::Tensor zeros =
        is_untouched ? untouched_zeros(sizes, grads.values.options()) : at::zeros(sizes, grads.values.options());
    return zeros.index_copy_(0, groups.rows, sum_groups(grads, groups));
  }
  // The CPU's kernel also writes the rows without ids.
  at::Tensor result =
      grads.values.is_cuda() ? at::zeros(sizes, grads.values.options()) : at::empty(sizes, grads.values.options());
  if (result.numel() == 0) return result;
  const kernels::GradRows rows = grad_rows_of(grads);
  const int64_t* numbers = numbers_of(groups.rows);
  void* into = memory_of(result);
  run_sums(rows, groups, n_rows, row_bytes(rows),
           [&](const kernels::Groups& all, auto... where) { kernels::sum_rows(rows, all, numbers, into, where...); });
  return result;
}

at::Tensor pool_rows(const at::Tensor& rows, int64_t first_row, const IdBags& bags, kernels::Pooling pooling,
                     at::Tensor* chosen) {
  const at::Tensor from = with_dense_rows(rows);
  at::Tensor results = at::empty({bags.offsets.numel(), rows.size(1)}, rows.options());
  if (chosen != nullptr) *chosen = at::empty(results.sizes(), numbers_like(rows));
  const kernels::Rows table = rows_of(from, first_row);
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::Bags raw_bags = bags_of(bags);
  void* into = memory_of(results);
  auto* places = chosen == nullptr ? nullptr : memory_of<int64_t>(*chosen);
  run_parts(rows.device(), raw_bags.n, row_bytes(table) * ids_per_bag(raw_bags),
            [&](auto... where) { kernels::pool(table, ids, raw_bags, pooling, into, places, where...); });
  return results;
}

at::Tensor IdBags::lengths() const {
  const at::Tensor end = at::full({1}, ids.numel(), offsets.options());
  return at::cat({offsets.slice(0, 1), end}) - offsets;
}

RowGrads grads_of_bags(const at::Tensor& grad, const IdBags& bags, kernels::Pooling pooling, const at::Tensor& chosen) {
  RowGrads grads{with_dense_rows(grad), at::empty({bags.ids.numel()}, numbers_like(grad)), {}, chosen};
  if (bags.weights.defined() || pooling == kernels::Pooling::kMean)
    grads.factors = at::empty({bags.ids.numel()}, grad.options().dtype(sum_type(grad.scalar_type())));
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::Bags raw_bags = bags_of(bags);
  const kernels::Element element = element_of(grad.scalar_type());
  auto* bag_of = memory_of<int64_t>(grads.row_of);
  void* factors = grads.factors.defined() ? memory_of(grads.factors) : nullptr;
  run_parts(grad.device(), raw_bags.n, 16 * ids_per_bag(raw_bags),
            [&](auto... where) { kernels::spread_bags(raw_bags, ids, pooling, element, bag_of, factors, where...); });
  return grads;
}

at::Tensor weights_grad(const at::Tensor& rows, int64_t first_row, const IdBags& bags, const RowGrads& grads) {
  at::Tensor result = at::empty({bags.ids.numel()}, rows.options());
  const at::Tensor from = with_dense_rows(rows);
  const kernels::Rows table = rows_of(from, first_row);
  const kernels::Ids ids = ids_of(bags.ids);
  const kernels::GradRows grad_rows = grad_rows_of(grads);
  void* into = memory_of(result);
  run_parts(rows.device(), ids.n, row_bytes(table),
            [&](auto... where) { kernels::dot_rows(table, ids, bags.padding, grad_rows, into, where...); });
  return result;
}

at::Tensor row_powers(const at::Tensor& rows, const at::Tensor& numbers, double p) {
  const at::Tensor powers = at::empty({numbers.numel()}, rows.options().dtype(at::kDouble));
  const at::Tensor from = with_dense_rows(rows);
  const kernels::Rows table = rows_of(from, 0);
  const int64_t *wanted = numbers_of(numbers), n = numbers.numel();
  auto* into = memory_of<double>(powers);
  const auto part = [&](int64_t begin, int64_t end) { kernels::row_powers(table, wanted, p, into, begin, end); };
  run_kernel(
      rows.device(), [&] { share_out(n, row_bytes(table), part); },
      [&](auto stream) { cuda::row_powers(table, wanted, n, p, into, stream); });
  return powers;
}

void shorten_rows(const at::Tensor& rows, const at::Tensor& numbers, double p, double max_norm,
                  const at::Tensor& powers) {
  const at::Tensor dense = with_dense_rows(rows);
  const kernels::Rows table = rows_of(dense, 0);
  const int64_t *wanted = numbers_of(numbers), n = numbers.numel();
  const auto* of_rows = const_memory_of<double>(powers);
  const auto part = [&](int64_t begin, int64_t end) {
    kernels::shorten_rows(table, wanted, p, max_norm, of_rows, begin, end);
  };
  run_kernel(
      rows.device(), [&] { share_out(n, row_bytes(table), part); },
      [&](auto stream) { cuda::shorten_rows(table, wanted, n, p, max_norm, of_rows, stream); });
  if (!dense.is_same(rows)) rows.copy_(dense);
}

}  // namespace shardwise
