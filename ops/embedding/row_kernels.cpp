#include "ops/embedding/row_kernels.h"

#include "ops/embedding/row_launch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <limits>
#include <vector>

namespace shardwise {
namespace {

std::optional<kernels::Element> maybe_element(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return kernels::Element::kFloat;
    case at::kDouble:
      return kernels::Element::kDouble;
    case at::kBFloat16:
      return kernels::Element::kBFloat16;
    case at::kHalf:
      return kernels::Element::kHalf;
    default:
      return {};
  }
}

kernels::Element element_of(at::ScalarType dtype) {
  const auto element = maybe_element(dtype);
  TORCH_CHECK_TYPE(element,
                   fmt::format("[embedding] the table is {}. Gradients, sums and norms of its rows take float32, "
                               "float64, bfloat16 and float16.",
                               c10::toString(dtype)));
  return *element;
}

/// Kernels that only copy take any dtype as one of its size.
kernels::Element element_of_copies(const at::Tensor& rows) {
  return rows.element_size() == 8   ? kernels::Element::kDouble
         : rows.element_size() == 4 ? kernels::Element::kFloat
                                    : kernels::Element::kHalf;
}

kernels::Ids ids_of(const at::Tensor& ids) {
  return {ids.const_data_ptr(), ids.scalar_type() == at::kInt, ids.numel()};
}

at::Tensor with_adjoining_elements(const at::Tensor& rows) {
  return rows.stride(-1) == 1 || rows.size(-1) <= 1 ? rows : rows.contiguous();
}

at::TensorOptions numbers_like(const at::Tensor& tensor) {
  return at::TensorOptions().dtype(at::kLong).device(tensor.device());
}

at::ScalarType sum_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

kernels::Bags bags_of(const IdBags& bags) {
  return {bags.offsets.const_data_ptr<int64_t>(), bags.offsets.numel(), bags.ids.numel(), bags.padding,
          bags.weights.defined() ? bags.weights.const_data_ptr() : nullptr};
}

const int64_t* numbers_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<int64_t>() : nullptr;
}

}  // namespace

kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row) {
  return {rows.mutable_data_ptr(), element_of(rows.scalar_type()), first_row, rows.size(0), rows.size(1),
          rows.stride(0)};
}

kernels::GradRows grad_rows_of(const RowGrads& grads) {
  return {grads.values.const_data_ptr(), element_of(grads.values.scalar_type()),
          grads.values.size(1),          grads.values.stride(0),
          numbers_of(grads.row_of),      grads.factors.defined() ? grads.factors.const_data_ptr() : nullptr,
          numbers_of(grads.chosen)};
}

launch::Groups groups_of(const IdGroups& groups) {
  return {groups.order.const_data_ptr<int64_t>(), groups.starts.const_data_ptr<int64_t>(),
          groups.rows.const_data_ptr<int64_t>(), groups.n(), groups.order.numel()};
}

RowGrads RowGrads::columns(int64_t begin, int64_t width) const {
  if (width == values.size(1)) return *this;
  return {values.narrow(1, begin, width), row_of, factors,
          chosen.defined() ? chosen.narrow(1, begin, width).contiguous() : chosen};
}

namespace {

/// Copies into `results`, whose rows are `step` elements apart. False where there is no kernel for the dtype or the device.
bool copy_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row, kernels::Miss miss,
               const at::Tensor& results, int64_t step) {
  if (!launch::has_kernels(rows.device()) || rows.element_size() < 2 || rows.element_size() > 8) return false;
  const at::Tensor from = with_adjoining_elements(rows), wanted = ids.contiguous();
  const kernels::Rows table{from.mutable_data_ptr(), element_of_copies(rows), first_row, from.size(0), from.size(1),
                            from.stride(0)};
  launch::look_up(rows.device(), table, ids_of(wanted), miss, results.mutable_data_ptr(), step);
  return true;
}

/// float8 has hardly an operator.
bool travels_as_bytes(const at::Tensor& rows) { return rows.element_size() == 1 && rows.scalar_type() != at::kByte; }

}  // namespace

void RowGrads::scale(const at::Tensor& by) {
  const at::Tensor own = by.to(sum_type(values.scalar_type()));
  factors = factors.defined() ? factors * own : own;
}

at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row) {
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(rows.size(1));
  if (ids.numel() == 0 || rows.numel() == 0) return at::zeros(shape, rows.options());
  if (travels_as_bytes(rows)) return lookup_rows(rows.view(at::kByte), ids, first_row).view(rows.scalar_type());
  at::Tensor results = at::empty(shape, rows.options());
  if (copy_rows(rows, ids, first_row, kernels::Miss::kZero, results, rows.size(1))) return results;
  const at::Tensor row = ids.reshape(-1) - first_row;
  const at::Tensor is_elsewhere = row.lt(0).logical_or_(row.ge(rows.size(0)));
  return rows.index_select(0, row.clamp(0, rows.size(0) - 1)).masked_fill_(is_elsewhere.unsqueeze(1), 0).view(shape);
}

void lookup_rows_into(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& ids, int64_t first_row) {
  if (ids.numel() == 0 || rows.numel() == 0) return;
  if (travels_as_bytes(rows)) return lookup_rows_into(results.view(at::kByte), rows.view(at::kByte), ids, first_row);
  if (copy_rows(rows, ids, first_row, kernels::Miss::kKeep, results, results.stride(0))) return;
  const at::Tensor row = ids.reshape(-1) - first_row;
  const at::Tensor here = row.ge(0).logical_and_(row.lt(rows.size(0))).nonzero().view(-1);
  results.index_copy_(0, here, rows.index_select(0, row.index_select(0, here)));
}

std::optional<std::pair<int64_t, int64_t>> range_of_ids(const at::Tensor& ids) {
  if (ids.numel() == 0) return {};
  const at::Tensor all = ids.contiguous();
  const kernels::IdRange range = launch::range_of(ids.device(), ids_of(all));
  return std::pair{range.lowest, range.highest};
}

int64_t digest_of_ids(const at::Tensor& ids) {
  if (ids.numel() == 0) return 0;
  const at::Tensor all = ids.contiguous();
  return static_cast<int64_t>(launch::digest_of(ids.device(), ids_of(all)));
}

IdGroups group_ids(const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped, bool with_group_of) {
  const at::Tensor flat = ids.reshape(-1).contiguous();
  const int64_t n = flat.numel();
  const auto options = numbers_like(ids);
  IdGroups groups{at::empty({n}, options), at::empty({n + 1}, options), at::empty({n}, options),
                  with_group_of ? at::empty({n}, options) : at::Tensor()};
  const at::Tensor scratch = at::empty({launch::group_scratch(ids.device(), n)}, options);
  const kernels::GroupMemory memory{groups.rows.mutable_data_ptr<int64_t>(), groups.starts.mutable_data_ptr<int64_t>(),
                                    groups.order.mutable_data_ptr<int64_t>(),
                                    with_group_of ? groups.group_of.mutable_data_ptr<int64_t>() : nullptr,
                                    reinterpret_cast<uint64_t*>(scratch.mutable_data_ptr<int64_t>())};
  const int64_t n_groups = launch::group_ids(ids.device(), ids_of(flat), first_row, n_rows, skipped, memory);
  groups.rows = groups.rows.narrow(0, 0, n_groups);
  groups.starts = groups.starts.narrow(0, 0, n_groups + 1);
  return groups;
}

namespace {

/// The gradients one by one, for dtypes that the kernels do not know.
at::Tensor one_by_one(const RowGrads& grads) {
  at::Tensor values = grads.row_of.defined() ? grads.values.index_select(0, grads.row_of) : grads.values;
  return grads.factors.defined() ? values * grads.factors.unsqueeze(1) : values;
}

}  // namespace

at::Tensor sum_groups(const RowGrads& grads, const IdGroups& groups) {
  if (!maybe_element(grads.values.scalar_type())) {
    const at::Tensor sums = at::zeros({groups.n(), grads.values.size(1)}, grads.values.options());
    const at::Tensor group_of =
        at::arange(groups.n(), groups.rows.options()).repeat_interleave(groups.starts.diff(), 0, groups.order.numel());
    return sums.index_add_(0, group_of, one_by_one(grads).index_select(0, groups.order));
  }
  at::Tensor sums = at::empty({groups.n(), grads.values.size(1)}, grads.values.options());
  launch::sum_groups(sums.device(), grad_rows_of(grads), groups_of(groups), sums.mutable_data_ptr());
  return sums;
}

at::Tensor sum_rows(const RowGrads& grads, const IdGroups& groups, int64_t n_rows) {
  const std::vector<int64_t> sizes{n_rows, grads.values.size(1)};
  if (!maybe_element(grads.values.scalar_type()))
    return at::zeros(sizes, grads.values.options()).index_copy_(0, groups.rows, sum_groups(grads, groups));
  at::Tensor result = at::empty(sizes, grads.values.options());
  if (result.numel() > 0)
    launch::sum_rows(result.device(), grad_rows_of(grads), groups_of(groups), result.mutable_data_ptr(), n_rows);
  return result;
}

at::Tensor pool_rows(const at::Tensor& rows, int64_t first_row, const IdBags& bags, kernels::Pooling pooling,
                     at::Tensor* chosen) {
  const at::Tensor from = with_adjoining_elements(rows);
  at::Tensor results = at::empty({bags.offsets.numel(), rows.size(1)}, rows.options());
  if (chosen != nullptr) *chosen = at::empty(results.sizes(), numbers_like(rows));
  const kernels::Rows table = rows_of(from, first_row);
  launch::pool(rows.device(), table, ids_of(bags.ids), bags_of(bags), pooling, -std::numeric_limits<double>::infinity(),
               results.mutable_data_ptr(), chosen == nullptr ? nullptr : chosen->mutable_data_ptr<int64_t>());
  return results;
}

RowGrads grads_of_bags(const at::Tensor& grad, const IdBags& bags, kernels::Pooling pooling, const at::Tensor& chosen) {
  RowGrads grads{with_adjoining_elements(grad), at::empty({bags.ids.numel()}, numbers_like(grad)), {}, chosen};
  if (bags.weights.defined() || pooling == kernels::Pooling::kMean)
    grads.factors = at::empty({bags.ids.numel()}, grad.options().dtype(sum_type(grad.scalar_type())));
  launch::spread_bags(grad.device(), bags_of(bags), ids_of(bags.ids), pooling, element_of(grad.scalar_type()),
                      grads.row_of.mutable_data_ptr<int64_t>(),
                      grads.factors.defined() ? grads.factors.mutable_data_ptr() : nullptr);
  return grads;
}

at::Tensor weights_grad(const at::Tensor& rows, int64_t first_row, const IdBags& bags, const RowGrads& grads) {
  at::Tensor result = at::empty({bags.ids.numel()}, rows.options());
  const at::Tensor from = with_adjoining_elements(rows);
  const kernels::Rows table = rows_of(from, first_row);
  launch::dot_rows(rows.device(), table, ids_of(bags.ids), bags.padding, grad_rows_of(grads),
                   result.mutable_data_ptr());
  return result;
}

at::Tensor row_powers(const at::Tensor& rows, const at::Tensor& numbers, double p) {
  at::Tensor powers = at::empty({numbers.numel()}, rows.options().dtype(at::kDouble));
  launch::row_powers(rows.device(), rows_of(rows, 0), numbers.const_data_ptr<int64_t>(), numbers.numel(), p,
                     powers.mutable_data_ptr<double>());
  return powers;
}

void shorten_rows(const at::Tensor& rows, const at::Tensor& numbers, double p, double max_norm,
                  const at::Tensor& powers) {
  launch::shorten_rows(rows.device(), rows_of(rows, 0), numbers.const_data_ptr<int64_t>(), numbers.numel(), p, max_norm,
                       powers.const_data_ptr<double>());
}

}  // namespace shardwise
