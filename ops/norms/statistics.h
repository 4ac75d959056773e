// ops/norms/statistics.h: code shared by the norms: axes, optional weights, dtypes of statistics, and gradients that are reduced once.
#pragma once

#include "ops/support/by_rule.h"
#include "ops/support/maybe_tensor.h"
#include "ops/support/plain_self.h"
#include "placements/placement_list.h"
#include "runtime/rules/rule.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

namespace shardwise {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The axes of a norm's operands: `parameter` for weight and bias, `statistics` for mean and rstd, `all` for the other operands.
struct NormAxes {
  Axes all, statistics, parameter;

  void add_inputs(const OpCall& call, Signature& signature) const {
    for (const Operand& operand : call.operands) {
      const std::string& name = call.name_of(operand);
      const bool is_parameter = name == "weight" || name == "bias", is_statistic = name == "mean" || name == "rstd";
      signature.inputs.push_back(is_parameter ? parameter : is_statistic ? statistics : all);
    }
  }
};

/// The rules of a norm and of its backward. `Norm` derives from NormAxes; its constructor finds the axes and adds the inputs.
template <class Norm>
void describe_norm(const OpCall& call, Signature& signature) {
  const Norm norm(call, signature);
  signature.outputs = {norm.all, norm.statistics, norm.statistics};
}
template <class Norm>
void describe_norm_backward(const OpCall& call, Signature& signature) {
  const Norm norm(call, signature);
  signature.outputs = {norm.all, norm.parameter, norm.parameter};
}

/// A plain weight or bias, argument `arg` of aten's `op`, as a replica without history, so that its gradient stays plain.
inline MaybeTensor as_replica(const char* op, const MaybeTensor& parameter, size_t arg, const at::Tensor& input) {
  if (!is_given(parameter) || is_dtensor(*parameter) || !is_dtensor(input)) return parameter;
  return replica_of_plain(op, *parameter, spec_of(input)->mesh(), /*keeps_history=*/false, arg);
}

/// Statistics of a half-precision input have the dtype of the weight, float32 in mixed precision.
inline at::ScalarType statistics_dtype(const at::Tensor& input, const MaybeTensor& weight) {
  return is_given(weight) ? weight->scalar_type() : input.scalar_type();
}

/// The gradient of a norm's output, reduced once if several gradients (`mask`: of input, weight and bias) are computed from it and `input` is
/// replicated on every mesh dim on which it is Partial. Otherwise each of those gradients would be Partial and reduced, with no fewer bytes in sum.
inline at::Tensor reduced_for_several(const at::Tensor& grad, const at::Tensor& input, std::array<bool, 3> mask) {
  if (std::ranges::count(mask, true) < 2 || !is_dtensor(grad)) return grad;
  if (!is_dtensor(input)) return reduced(grad);  // a replica
  const SpecPtr &of_grad = spec_of(grad), &of_input = spec_of(input);
  if (of_grad->mesh() != of_input->mesh()) return grad;
  const bool are_replicas = std::ranges::all_of(mesh_dims_with_terms(of_grad->placements()), [&](int64_t mesh_dim) {
    return of_input->placements()[mesh_dim].is_whole();
  });
  return are_replicas ? reduced(grad) : grad;
}

}  // namespace shardwise
