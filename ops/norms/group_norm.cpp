// ops/norms/group_norm.cpp: group norm. Batch and groups may be sharded; the normalised dims are whole.
//
// Our own operators compute it: they read the sizes from their tensors, where torch's take global sizes as arguments.
#include "ops/families.h"
#include "ops/norms/statistics.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "text/check.h"

#include <ATen/Functions.h>

#include <array>

namespace shardwise {
namespace {

/// Channels are sharded between groups; gradients of weight and bias are summed over the batch.
struct GroupNorm : NormAxes {
  GroupNorm(const OpCall& call, Signature& signature) {
    const c10::IntArrayRef sizes = call.operands[call.operand_at("input")].sizes;
    const int64_t n_groups = call.arg("group").toInt();
    const Axis batch{signature.add_factor(sizes[0])};
    const int group = signature.add_factor(n_groups);
    all = {batch, {group, sizes[1] / n_groups}};
    if (sizes[1] == 0) {  // groups without channels: a rank cannot infer its number of groups from its channels
      signature.factors[group].is_whole = true;
      all[1] = {signature.add_factor(0)};
      signature.factors.back().is_whole = true;
    }
    for (int64_t size : sizes.slice(2)) {
      all.push_back({signature.add_factor(size, /*is_whole=*/true)});
    }
    statistics = {batch, {group}};
    parameter = {all[1]};
    add_inputs(call, signature);
  }
};

/// The number of groups in this rank's channels.
void localize(const LocalCall& local, std::vector<c10::IValue>& args) {
  const OpCall& call = local.call;
  const int input = call.operand_at("input");
  const int64_t n_channels = call.operands[input].sizes[1];
  if (n_channels > 0)
    args[call.op.arg_index("group")] = local.inputs[input].sizes[1] * call.arg("group").toInt() / n_channels;
}

int64_t n_per_channel(const at::Tensor& input) { return c10::multiply_integers(input.sizes().slice(2)); }

Three compute_shape(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& /*bias*/, int64_t group,
                    double /*eps*/) {
  const auto dtype = statistics_dtype(input, weight);
  const auto statistics = [&] { return at::empty({input.size(0), group}, input.options().dtype(dtype)); };
  return {at::empty(input.sizes(), input.options()), statistics(), statistics()};
}

Three compute(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t group, double eps) {
  if (input.numel() == 0) return compute_shape(input, weight, bias, group, eps);
  return at::native_group_norm(input.contiguous(), weight, bias, input.size(0), input.size(1), n_per_channel(input),
                               group, eps);
}

Three compute_backward_shape(const at::Tensor& /*grad*/, const at::Tensor& input, const at::Tensor& /*mean*/,
                             const at::Tensor& /*rstd*/, const MaybeTensor& weight, int64_t /*group*/,
                             std::array<bool, 3> mask) {
  const auto dtype = statistics_dtype(input, weight);
  const auto parameter = [&](bool is_wanted) {
    return is_wanted ? at::zeros({input.size(1)}, input.options().dtype(dtype)) : at::Tensor();
  };
  return {mask[0] ? at::empty(input.sizes(), input.options()) : at::Tensor(), parameter(mask[1]), parameter(mask[2])};
}

Three compute_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rstd,
                       const MaybeTensor& weight, int64_t group, std::array<bool, 3> mask) {
  if (input.numel() == 0) return compute_backward_shape(grad, input, mean, rstd, weight, group, mask);
  return at::native_group_norm_backward(grad.contiguous(), input.contiguous(), mean.contiguous(), rstd.contiguous(),
                                        weight, input.size(0), input.size(1), n_per_channel(input), group, mask);
}

/// Throws: torch's errors. The error for the dtype is thrown here because torch's kernel throws it only if there are elements.
void check_groups(const at::Tensor& input, int64_t group) {
  SW_CHECK_NOT_IMPLEMENTED(
      at::isFloatingType(input.scalar_type()),
      "[aten::native_group_norm] is not implemented for {}. Convert the tensor to a floating dtype.",
      c10::toString(input.scalar_type()));
  TORCH_CHECK(group > 0, "Expected num groups to be greater than 0, got ", group);
  TORCH_CHECK(input.size(1) % group == 0,
              "Expected number of channels in input to be divisible by num_groups, but got input of shape ",
              input.sizes(), " and num_groups=", group);
}

Three group_norm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t /*n*/,
                 int64_t /*c*/, int64_t /*hxw*/, int64_t group, double eps) {
  static const auto op = operator_of<decltype(compute)>("shardwise::group_norm");
  check_groups(input, group);
  return op.call(input, weight, bias, group, eps);
}

Three group_norm_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                          const at::Tensor& rstd, const MaybeTensor& weight, int64_t /*n*/, int64_t /*c*/,
                          int64_t /*hxw*/, int64_t group, std::array<bool, 3> mask) {
  static const auto op = operator_of<decltype(compute_backward)>("shardwise::group_norm_backward");
  check_groups(input, group);
  return op.call(reduced_for_several(grad, input, mask), input, mean, rstd, weight, group, mask);
}

}  // namespace

void register_group_norm(RuleTable& table) {
  define_operator(
      "group_norm(Tensor input, Tensor? weight, Tensor? bias, int group, float eps) -> (Tensor, Tensor, Tensor)",
      {&compute, &compute_shape});
  define_operator(
      "group_norm_backward(Tensor grad, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, int group, "
      "bool[3] mask) -> (Tensor, Tensor, Tensor)",
      {&compute_backward, &compute_backward_shape});
  table.add("shardwise::group_norm", Rule("group_norm", describe_norm<GroupNorm>).localized(localize));
  table.add("shardwise::group_norm_backward",
            Rule("group_norm_backward", describe_norm_backward<GroupNorm>).linear_in_first().localized(localize));
  aten_kernels().impl("native_group_norm", &group_norm);
  aten_kernels().impl("native_group_norm_backward", &group_norm_backward);
}

}  // namespace shardwise
