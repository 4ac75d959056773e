// ops/embedding/quantized_state.cpp: the checkpoint of a table of 8-bit rows: an 8-bit number per element, and a scale and an offset per row, in
// DTensors that reshard like any others.
#include "ops/embedding/packed_rows.h"
#include "ops/embedding/quantized_table.h"
#include "ops/embedding/split_rows.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace shardwise {
namespace {

constexpr const char* kLoad = "load_state_dict";

SpecPtr spec_of_codes(const Spec& table) {
  return Spec::intern(table.mesh(), table.layout(), row_major_strides(table.sizes()), at::kByte);
}

SpecPtr spec_of_numbers(const Spec& table) {
  return Spec::intern(table.mesh(), Dims{table.sizes()[0]}, placements_of_rows(table), Dims{1}, at::kFloat);
}

/// Calls `use(i, k, rows)` for the rows that the table's piece `i` and the piece `k` of `numbers`, both on this rank, have in common.
template <class Use>
void for_each_common(const Spec& table, const Spec& numbers, const Use& use) {
  for (size_t i = 0; i < table.boxes().size(); ++i)
    for (size_t k = 0; k < numbers.boxes().size(); ++k) {
      const Interval of_piece = table.boxes()[i].interval(0), kept = numbers.boxes()[k].interval(0);
      const Interval rows{std::max(of_piece.begin, kept.begin), std::min(of_piece.end, kept.end)};
      if (rows.begin < rows.end) use(i, k, rows);
    }
}

at::Tensor common_rows_in(const at::Tensor& piece, Interval of_piece, Interval rows) {
  return piece.narrow(0, rows.begin - of_piece.begin, rows.length());
}

void check_names(const QuantizedTable::State& wanted, const QuantizedTable::State& state) {
  std::vector<std::string> missing, unknown;
  for (const auto& [name, tensor] : wanted)
    if (!state.contains(name)) missing.push_back(name);
  for (const auto& [name, tensor] : state)
    if (!wanted.contains(name)) unknown.push_back(name);
  SW_CHECK_VALUE(missing.empty() && unknown.empty(),
                 "[{}] a quantised table has codes, scales and offsets. Missing: [{}]; unknown: [{}]. Give the result "
                 "of state_dict().",
                 kLoad, fmt::join(missing, ", "), fmt::join(unknown, ", "));
}

/// Returns `given` after checking that it has the sizes and dtype of `wanted` and is not Partial.
at::Tensor checked_state(const std::string& name, const at::Tensor& given, const SpecPtr& wanted) {
  SW_CHECK_TYPE(is_dtensor(given),
                "[{}] {} is a torch.Tensor of shape [{}]. Wrap it with distribute_tensor(x, mesh, [Replicate()]).",
                kLoad, name, fmt::join(given.sizes(), ", "));
  SW_CHECK_TYPE(given.scalar_type() == wanted->dtype(),
                "[{}] {} are {}, but must be {}. Give the result of state_dict().", kLoad, name,
                c10::toString(given.scalar_type()), c10::toString(wanted->dtype()));
  SW_CHECK_VALUE(given.sizes() == c10::IntArrayRef(wanted->sizes()),
                 "[{}] {} have shape [{}], but this table needs shape [{}]. Load them into a table of that shape.",
                 kLoad, name, fmt::join(given.sizes(), ", "), fmt::join(wanted->sizes(), ", "));
  SW_CHECK_VALUE(!spec_of(given)->layout().has_terms(),
                 "[{}] {} are laid out as {}: they are Partial, so no rank has whole values. Reduce them first with "
                 "redistribute().",
                 kLoad, name, to_string(spec_of(given)->placements()));
  return given;
}

}  // namespace

QuantizedTable::State QuantizedTable::state() const {
  const BelowAutograd guard;
  const SpecPtr of_codes = spec_of_codes(*spec_), of_numbers = spec_of_numbers(*spec_);
  Shards codes, scales, offsets;
  for (size_t i = 0; i < pieces_.size(); ++i)
    codes.push_back(codes_in(pieces_[i], spec_->boxes()[i].sizes[1]).clone(at::MemoryFormat::Contiguous));
  const auto options = at::TensorOptions().dtype(at::kFloat).device(spec_->mesh()->device());
  for (const Box& box : of_numbers->boxes()) {
    scales.push_back(at::zeros(box.sizes, options));
    offsets.push_back(at::zeros(box.sizes, options));
  }
  for_each_common(*spec_, *of_numbers, [&](size_t i, size_t k, Interval rows) {
    const at::Tensor both = common_rows_in(scales_and_offsets_in(pieces_[i]), spec_->boxes()[i].interval(0), rows);
    const Interval kept = of_numbers->boxes()[k].interval(0);
    common_rows_in(scales[k], kept, rows).copy_(both.select(1, 0));
    common_rows_in(offsets[k], kept, rows).copy_(both.select(1, 1));
  });
  return {{"codes", wrap(of_codes, std::move(codes))},
          {"scales", wrap(of_numbers, std::move(scales))},
          {"offsets", wrap(of_numbers, std::move(offsets))}};
}

void QuantizedTable::load_state(const State& state) {
  const BelowAutograd guard;
  const CommScope scope(kLoad, CommScope::Cause::kProgram);
  const SpecPtr of_codes = spec_of_codes(*spec_), of_numbers = spec_of_numbers(*spec_);
  check_names({{"codes", {}}, {"scales", {}}, {"offsets", {}}}, state);
  at::Tensor codes = checked_state("codes", state.at("codes"), of_codes),
             scales = checked_state("scales", state.at("scales"), of_numbers),
             offsets = checked_state("offsets", state.at("offsets"), of_numbers);
  codes = redistribute(codes, spec_->mesh(), of_codes->placements().vec());
  scales = redistribute(scales, spec_->mesh(), of_numbers->placements().vec());
  offsets = redistribute(offsets, spec_->mesh(), of_numbers->placements().vec());
  std::vector<at::Tensor> numbers;  // for the rows of each piece; infinite if another piece keeps them
  for (const at::Tensor& words : pieces_)
    numbers.push_back(
        at::full({words.size(0), 2}, std::numeric_limits<float>::infinity(), words.options().dtype(at::kFloat)));
  for_each_common(*spec_, *of_numbers, [&](size_t i, size_t k, Interval rows) {
    const at::Tensor both = common_rows_in(numbers[i], spec_->boxes()[i].interval(0), rows);
    const Interval kept = of_numbers->boxes()[k].interval(0);
    both.select(1, 0).copy_(common_rows_in(maybe_dtensor(scales)->shards()[k], kept, rows));
    both.select(1, 1).copy_(common_rows_in(maybe_dtensor(offsets)->shards()[k], kept, rows));
  });
  reduce_split_rows(*spec_, numbers, Reduce::kMin);
  const int64_t bad = first_unbounded_row(*spec_, numbers);
  SW_CHECK_VALUE(bad == spec_->sizes()[0],
                 "[{}] row {} has a scale or an offset that is not finite: the numbers are corrupt. Load the state of "
                 "a quantised table.",
                 kLoad, bad);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    codes_in(pieces_[i], spec_->boxes()[i].sizes[1]).copy_(maybe_dtensor(codes)->shards()[i]);
    scales_and_offsets_in(pieces_[i]).copy_(numbers[i]);
  }
}

}  // namespace shardwise
