#include "wrappers/distributed_embedding/feature_ids.h"

#include "ops/support/planned_values.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

std::optional<kernels::Pooling> pooling_of(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return kernels::Pooling::kSum;
    case Combiner::kMean:
      return kernels::Pooling::kMean;
    case Combiner::kMax:
      return kernels::Pooling::kMax;
    case Combiner::kNone:
      break;
  }
  return std::nullopt;
}

bool is_integral(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

void check_plain(const Feature& feature, const char* what, const at::Tensor& tensor, const Spec& table) {
  SW_CHECK_TYPE(!is_dtensor(tensor),
                "[{}] the {} of feature {} are a DTensor, laid out as {}. Each rank gives its own part as a plain "
                "tensor: to_local().",
                kLayer, what, feature.name, to_string(spec_of(tensor)->placements()));
  SW_CHECK_TYPE(tensor.layout() == at::kStrided && (!tensor.is_meta() || table.mesh()->is_meta()),
                "[{}] the {} of feature {} are sparse or on meta. Give a dense tensor with values.", kLayer, what,
                feature.name);
}

at::Tensor flat_copy(const at::Tensor& tensor, const at::TensorOptions& options) {
  return at::empty({tensor.numel()}, options.memory_format(std::nullopt).requires_grad(false))
      .copy_(tensor.reshape(-1));
}

/// [samples + 1], on the CPU.
at::Tensor checked_offsets(const Feature& feature, at::Tensor offsets, int64_t n_ids) {
  SW_CHECK_TYPE(is_integral(offsets), "[{}] the offsets of feature {} are {}. Give int64 or int32.", kLayer,
                feature.name, c10::toString(offsets.scalar_type()));
  offsets = offsets.cpu().to(at::kLong).contiguous();
  SW_CHECK_VALUE(offsets.dim() == 1 && offsets.numel() > 0,
                 "[{}] the offsets of feature {} have shape [{}]. Give [samples + 1].", kLayer, feature.name,
                 fmt::join(offsets.sizes(), ", "));
  const auto* values = offsets.const_data_ptr<int64_t>();
  const int64_t n = offsets.numel();
  SW_CHECK_VALUE(
      values[0] == 0 && values[n - 1] == n_ids,
      "[{}] the offsets of feature {} go from {} to {}, but it has {} ids. Begin at 0 and end at the number of ids.",
      kLayer, feature.name, values[0], values[n - 1], n_ids);
  for (int64_t i = 1; i < n; ++i)
    SW_CHECK_VALUE(values[i] >= values[i - 1],
                   "[{}] the offsets of feature {} fall from {} to {} at sample {}. Give them in ascending order.",
                   kLayer, feature.name, values[i - 1], values[i], i - 1);
  return offsets;
}

at::Tensor offsets_of_lengths(const Feature& feature, const at::Tensor& given, int64_t n_ids) {
  SW_CHECK_TYPE(is_integral(given), "[{}] the lengths of feature {} are {}. Give int64 or int32.", kLayer, feature.name,
                c10::toString(given.scalar_type()));
  SW_CHECK_VALUE(given.dim() == 1, "[{}] the lengths of feature {} have shape [{}]. Give [samples].", kLayer,
                 feature.name, fmt::join(given.sizes(), ", "));
  const at::Tensor lengths = given.cpu().to(at::kLong).contiguous();
  const at::Tensor offsets = at::zeros({lengths.numel() + 1}, at::kLong);
  auto* values = offsets.mutable_data_ptr<int64_t>();
  const auto* each = lengths.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    SW_CHECK_VALUE(each[i] >= 0, "[{}] sample {} of feature {} has length {}. Use 0 or more.", kLayer, i, feature.name,
                   each[i]);
    SW_CHECK_VALUE(each[i] <= n_ids - values[i],
                   "[{}] the lengths of feature {} add up to more than its {} ids at sample {}, which has {}. Give "
                   "each sample's number of ids.",
                   kLayer, feature.name, n_ids, i, each[i]);
    values[i + 1] = values[i] + each[i];
  }
  SW_CHECK_VALUE(values[lengths.numel()] == n_ids,
                 "[{}] the lengths of feature {} add up to {}, but it has {} ids. Give each sample's number of ids.",
                 kLayer, feature.name, values[lengths.numel()], n_ids);
  return offsets;
}

/// [samples], as in IdBags.
at::Tensor offsets_of_shape(const at::Tensor& ids) {
  const int64_t per_sample = ids.dim() == 1 ? 1 : ids.size(1);
  return at::arange(ids.size(0), at::kLong).mul_(per_sample);
}

}  // namespace

std::vector<int64_t> FeatureIds::sizes_with(int64_t n_columns) const {
  std::vector<int64_t> result = sizes;
  result.push_back(n_columns);
  return result;
}

at::Tensor FeatureIds::combined(const at::Tensor& rows, const at::Tensor& numbers, at::Tensor* chosen) const {
  if (!pooling) return lookup_rows(rows, numbers, 0);
  return pool_rows(rows, 0, bags(numbers), *pooling, *pooling == kernels::Pooling::kMax ? chosen : nullptr);
}

FeatureIds FeatureIds::of(const Feature& feature, const FeatureInput& input, const Spec& table) {
  const at::ScalarType table_dtype = table.dtype();
  const c10::Device device(table.mesh()->device_type());
  check_plain(feature, "ids", input.ids, table);
  SW_CHECK_TYPE(is_integral(input.ids), "[{}] the ids of feature {} are {}. Give int64 or int32.", kLayer, feature.name,
                c10::toString(input.ids.scalar_type()));
  const bool is_ragged = input.offsets || input.lengths;
  SW_CHECK_VALUE(!(input.offsets && input.lengths), "[{}] feature {} has offsets and lengths. Give one of them.",
                 kLayer, feature.name);
  SW_CHECK_VALUE(is_ragged ? input.ids.dim() == 1 : input.ids.dim() == 1 || input.ids.dim() == 2,
                 "[{}] the ids of feature {} have shape [{}]. Give [samples], [samples, ids per sample], or flat ids "
                 "with offsets or lengths.",
                 kLayer, feature.name, fmt::join(input.ids.sizes(), ", "));
  if (table.mesh()->is_meta()) note_planned(table);
  // Copies the input: a program may overwrite its tensors before the backward, or while ids are being sent.
  FeatureIds result{table.mesh()->is_meta()
                        ? PlannedIds(input.ids.numel(), table.sizes()[0]).ids()
                        : flat_copy(input.ids, at::TensorOptions().dtype(at::kLong).device(at::kCPU)),
                    pooling_of(feature.combiner),
                    {},
                    {},
                    input.ids.sizes().vec()};
  const int64_t n = result.ids.numel();
  at::Tensor offsets;
  if (table.mesh()->is_meta() && is_ragged) {
    offsets = planned_offsets(input.offsets ? input.offsets->numel() - 1 : input.lengths->numel(), n);
  } else if (input.offsets) {
    check_plain(feature, "offsets", *input.offsets, table);
    offsets = checked_offsets(feature, *input.offsets, n);
  } else if (input.lengths) {
    check_plain(feature, "lengths", *input.lengths, table);
    offsets = offsets_of_lengths(feature, *input.lengths, n);
  }
  if (result.pooling) {
    result.sizes = {is_ragged ? offsets.numel() - 1 : input.ids.size(0)};
    if (is_ragged || result.sizes[0] != n || input.weights)
      result.offsets = (is_ragged ? offsets.narrow(0, 0, result.sizes[0]) : offsets_of_shape(input.ids)).to(device);
    else
      result.pooling.reset();
  }
  if (!input.weights) return result;
  check_plain(feature, "weights", *input.weights, table);
  SW_CHECK_VALUE(feature.combiner == Combiner::kSum || feature.combiner == Combiner::kMean,
                 "[{}] feature {} has weights and combiner {}. Weights go with sum and mean.", kLayer, feature.name,
                 to_string(feature.combiner));
  SW_CHECK_VALUE(input.weights->sizes() == input.ids.sizes(),
                 "[{}] the weights of feature {} have shape [{}], but its ids have shape [{}]. Give one weight per id.",
                 kLayer, feature.name, fmt::join(input.weights->sizes(), ", "), fmt::join(input.ids.sizes(), ", "));
  SW_CHECK_TYPE(input.weights->scalar_type() == table_dtype,
                "[{}] the weights of feature {} are {}, but its table is {}. Use one dtype.", kLayer, feature.name,
                c10::toString(input.weights->scalar_type()), c10::toString(table_dtype));
  result.weights = flat_copy(input.weights->detach(), input.weights->options().device(device));
  return result;
}

}  // namespace shardwise
