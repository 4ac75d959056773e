#include "ops/embedding/quantized_table.h"

#include "ops/embedding/bag_lookup.h"
#include "ops/embedding/packed_rows.h"
#include "ops/embedding/split_rows.h"
#include "placements/placement_list.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace shardwise {
namespace {

constexpr const char* kQuantize = "quantize_rows";
constexpr const char* kZeros = "QuantizedTable.zeros";
constexpr const char* kLookup = "aten::embedding";

void check_quantizable(const at::Tensor& table) {
  check_table(kQuantize, table);
  SW_CHECK_VALUE(
      !table.is_meta(),
      "[{}] the table is on meta and has no values. Give it memory with Module.to_empty() and load it first.",
      kQuantize);
}

/// The smallest number of each row and the negated largest, float32 [rows, 2]. Over the pieces of a row, the minimum of each gives the range of the
/// whole row. Infinities if the piece has no columns.
at::Tensor range_of_rows(const at::Tensor& piece) {
  if (piece.size(1) == 0)
    return at::full({piece.size(0), 2}, std::numeric_limits<float>::infinity(), piece.options().dtype(at::kFloat));
  return at::stack({piece.amin({1}), piece.amax({1}).neg()}, 1).to(at::kFloat);
}

}  // namespace

std::shared_ptr<QuantizedTable> QuantizedTable::of(const at::Tensor& table, at::ScalarType dtype) {
  SW_CHECK_TYPE(dtype == at::kChar, "[{}] rows cannot be {}. Use int8.", kQuantize, c10::toString(dtype));
  check_quantizable(table);
  const BelowAutograd guard;
  const CommScope scope(kQuantize);
  const std::shared_ptr<QuantizedTable> result(new QuantizedTable);
  const SpecPtr& spec = result->spec_ = spec_of(table);
  const Shards& pieces = maybe_dtensor(table)->shards();
  std::vector<at::Tensor> ranges;
  for (const at::Tensor& piece : pieces) ranges.push_back(range_of_rows(piece));
  const int64_t bad = first_unbounded_row(*spec, ranges);
  SW_CHECK_VALUE(bad == spec->sizes()[0],
                 "[{}] row {} of the table has a number that is not finite in float32. 8-bit rows are scaled between "
                 "their smallest and their largest number: replace it first, with nan_to_num().",
                 kQuantize, bad);
  reduce_split_rows(*spec, ranges, Reduce::kMin);  // the minimum over a row's pieces is the whole row's
  for (size_t i = 0; i < pieces.size(); ++i) {
    ranges[i].select(1, 1).neg_();
    result->pieces_.push_back(pack_rows(pieces[i], ranges[i]));
  }
  return result;
}

std::shared_ptr<QuantizedTable> QuantizedTable::zeros(c10::IntArrayRef sizes, const MeshPtr& mesh,
                                                      Placements placements, at::ScalarType dtype) {
  const BelowAutograd guard;
  const std::shared_ptr<QuantizedTable> result(new QuantizedTable);
  SW_CHECK_VALUE(sizes.size() == 2, "[{}] a table of shape [{}] has {} dims. Give [rows, columns].", kZeros,
                 fmt::join(sizes, ", "), sizes.size());
  SW_CHECK_TYPE(at::isFloatingType(dtype), "[{}] lookups cannot give {}. Use float32, float64, bfloat16 or float16.",
                kZeros, c10::toString(dtype));
  result->spec_ = Spec::intern(mesh, Dims(sizes), std::move(placements), row_major_strides(sizes), dtype);
  SW_CHECK_VALUE(!result->spec_->layout().has_terms(),
                 "[{}] the placements {} are Partial: packed rows cannot be added up. Use Shard or Replicate.", kZeros,
                 to_string(result->spec_->placements()));
  for (const Box& box : result->spec_->boxes())
    result->pieces_.push_back(at::zeros({box.sizes[0], kernels::packed_words(box.sizes[1])},
                                        at::TensorOptions().dtype(at::kInt).device(mesh->device())));
  return result;
}

int64_t QuantizedTable::n_bytes() const {
  int64_t n = 0;
  for (const at::Tensor& piece : pieces_) n += piece.numel() * piece.element_size();
  return n;
}

at::Tensor QuantizedTable::lookup(const at::Tensor& ids) const {
  const BelowAutograd guard;
  const at::Tensor own = prepared_ids(kLookup, ids, *spec_);
  const CommScope scope(kLookup);
  const LookupOptions& options = LookupScope::current();
  TableLookup lookup = TableLookup::start(kLookup, spec_, own, plan_lookup(spec_, spec_of(own), options), options);
  if (lookup.plan->ids_are_equal) lookup = lookup.of_parts(lookup.plan->ids);
  const SpecPtr& found = lookup.plan->rows;
  Shards pieces;
  if (found->is_member()) pieces.push_back(lookup.find_rows(pieces_, /*are_packed=*/true));
  const at::Tensor result = wrap(found, std::move(pieces));
  return lookup.plan->result == lookup.plan->found ? result : redistribute(result, lookup.plan->result);
}

at::Tensor QuantizedTable::lookup_bags(const at::Tensor& ids, const std::optional<at::Tensor>& offsets,
                                       const std::string& mode, const std::optional<at::Tensor>& per_sample_weights,
                                       bool include_last_offset, std::optional<int64_t> padding_idx) const {
  SW_CHECK_VALUE(mode == "sum" || mode == "mean" || mode == "max",
                 "[lookup_bags] mode \"{}\" is unknown. Use \"sum\", \"mean\" or \"max\".", mode);
  SW_CHECK_VALUE(ids.dim() == (offsets ? 1 : 2),
                 "[lookup_bags] ids have shape [{}]. Give [bags, ids of a bag], or flat ones with offsets.",
                 fmt::join(ids.sizes(), ", "));
  at::Tensor flat = ids, begins, weights = per_sample_weights.value_or(at::Tensor());
  if (offsets) {
    begins = *offsets;
  } else {
    begins = at::arange(ids.size(0), at::kLong).mul_(ids.size(1));
    flat = ids.reshape({-1});
    if (weights.defined()) weights = weights.reshape({-1});
  }
  const BelowAutograd guard;
  const CommScope scope("aten::embedding_bag");
  BagLookup call = start_bags(spec_, flat, begins,
                              mode == "sum"    ? 0
                              : mode == "mean" ? 1
                                               : 2,
                              weights, offsets && include_last_offset, padding_idx);
  call.is_packed = true;
  return pool_bags_of(call, pieces_, at::TensorOptions().dtype(spec_->dtype()).device(spec_->mesh()->device()), weights,
                      /*needs_grad=*/false);
}

at::Tensor QuantizedTable::dequantized() const {
  const BelowAutograd guard;
  Shards pieces;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Dims& sizes = spec_->boxes()[i].sizes;
    const at::TensorOptions options = pieces_[i].options();
    pieces.push_back(at::empty(sizes, options.dtype(spec_->dtype())));
    lookup_packed_rows_into(pieces.back(), pieces_[i], at::arange(sizes[0], options.dtype(at::kLong)), 0);
  }
  return wrap(spec_, std::move(pieces));
}

}  // namespace shardwise
