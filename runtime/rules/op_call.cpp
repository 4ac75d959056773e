#include "runtime/rules/op_call.h"

#include "runtime/comm/tracing.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/meta_memory.h"
#include "text/check.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string_view>

namespace shardwise {
namespace {

bool may_be_sharded(const Axis& axis, const Signature& signature) {
  return axis.factor >= 0 && !signature.factors[axis.factor].is_whole;
}

constexpr int64_t kExtent = 2;  // of factors that may be sharded; strides of dims of extent 1 carry no information

Dims sample_sizes(const Operand& operand, const Axes& axes, const Signature& signature) {
  Dims sizes(operand.sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (may_be_sharded(axes[dim], signature)) sizes[dim] = axes[dim].scale * kExtent;
  return sizes;
}

/// Strides in the same order as those of `spec`, and 0 along expanded dims. A dim with one index never counts as expanded.
Dims sample_strides(const Dims& sizes, const Spec& spec) {
  Dims strides = dense_strides(sizes, spec.strides());
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (spec.strides()[dim] == 0 && spec.sizes()[dim] > 1) strides[dim] = 0;
  return strides;
}

/// True for an operand whose values are positions, ids, or classes of samples.
bool has_indices(const OpCall& call, const Operand& operand) {
  const OperandRole role = call.op.args[operand.arg].role;
  if (role == OperandRole::kPositions || role == OperandRole::kBatch) return true;
  return c10::isIntegralType(operand.spec->dtype(), /*includeBool=*/false) && call.name_of(operand) == "target";
}

/// Meta if the pieces are on meta: kernels there may give other dtypes than those of the device that is planned for.
std::optional<c10::Device> planned_device(const OpCall& call) {
  const auto is_planned = [](const Operand& operand) { return operand.spec && operand.spec->mesh()->is_meta(); };
  return std::ranges::any_of(call.operands, is_planned) ? std::optional(c10::Device(c10::kMeta)) : std::nullopt;
}

/// A sample filled with ones, or with zeros for indices, because index 0 always exists.
at::Tensor sample_of(const OpCall& call, const Operand& operand, const Dims& sizes) {
  const Spec& spec = *operand.spec;
  const auto options =
      at::TensorOptions().dtype(spec.dtype()).device(planned_device(call).value_or(spec.mesh()->device()));
  const Dims strides = sample_strides(sizes, spec);
  return at::full(c10::multiply_integers(sizes), has_indices(call, operand) ? 0 : 1, options)
      .as_strided(sizes, strides);
}

/// The rule's signature of the call; nothing if the operands' numbers of dims, or a dim among the arguments, do not fit the rule. An exception that is a
/// bug of the rule passes.
std::optional<Signature> signature_of(const OpCall& call) {
  Signature signature;
  try {
    signature = call.op.rule->signature(call);
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("INTERNAL ASSERT") != std::string_view::npos) throw;
    return std::nullopt;
  }
  for (size_t i = 0; i < call.operands.size(); ++i)
    if (signature.inputs[i].size() != call.operands[i].sizes.size()) return std::nullopt;
  return signature;
}

/// Checks that dims with the same factor have the same size, and dims without a factor have size 1.
void check_sizes(const OpCall& call, const Signature& signature) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const c10::IntArrayRef sizes = call.operands[i].sizes;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const Axis& axis = signature.inputs[i][dim];
      const int64_t expected = axis.factor < 0 ? 1 : signature.factors[axis.factor].size * axis.scale;
      SW_CHECK(sizes[dim] == expected,
               "[{}] dim {} of the tensor of shape [{}] does not match the other tensors, whose size is {} there. Give "
               "tensors whose sizes agree.",
               call.op.name, dim, fmt::join(sizes, ", "), expected);
    }
  }
}

/// Runs the operator with each distributed operand replaced by a sample of these sizes. Nothing if this fails.
std::optional<std::vector<at::Tensor>> run(OpCall& call, const std::vector<Dims>& sizes) {
  const ShapesAlone uncounted;
  const auto sample = [&](size_t operand) { return sample_of(call, call.operands[operand], sizes[operand]); };
  try {
    return results_with(call, sample, planned_device(call));
  } catch (const c10::Error&) {
    call.refusal = std::current_exception();
    return std::nullopt;
  }
}

/// The strides of an elementwise result: in the order of the first operand with its sizes.
Dims elementwise_strides(const OpCall& call, const Dims& sizes) {
  for (const Operand& operand : call.operands)
    if (operand.spec && operand.sizes == sizes) return dense_strides(sizes, operand.spec->strides());
  return row_major_strides(sizes);
}

/// Infers the outputs of a per-element rule: output `i` has the sizes to which the list elements of index `i` broadcast.
bool infer_elements(OpCall& call) {
  std::vector<Dims> sizes;
  for (const Operand& operand : call.operands) sizes.emplace_back(operand.sizes.size(), 1);
  const auto results = run(call, sizes);
  if (!results) return false;
  call.outputs.resize(results->size());
  for (size_t i = 0; i < results->size(); ++i) {
    Dims together;
    for (const Operand& operand : call.operands)
      if (operand.index == i) together = at::infer_size_dimvector(together, operand.sizes);
    if (const at::Tensor& sample = (*results)[i]; sample.defined())
      call.outputs[i] = {together, elementwise_strides(call, together), sample.scalar_type()};
  }
  return true;
}

/// Fills `call.outputs` for an operator whose rule is sampled(). The operator runs on small tensors: two indices along each factor that may
/// be sharded, the full extent along whole ones, and strides in the operands' order. Dtypes, the order of strides, and the sizes along
/// whole and new dims come from the sample; the other sizes are those of the factors.
///
/// Returns false if the rule is not sampled() or the sample cannot run. Throws: c10::Error for operands whose sizes do not match each
/// other. Cost: the operator on the sample, a microsecond.
bool infer_from_sample(OpCall& call) {
  const Rule* rule = call.op.rule;
  if (!rule || !rule->is_sampled() || rule->is_shape_only()) return false;
  if (rule->is_per_element()) return infer_elements(call);

  call.outputs.resize(call.op.n_returns());
  const std::optional<Signature> described = signature_of(call);
  if (!described) return false;  // torch raises the error
  const Signature& signature = *described;
  check_sizes(call, signature);
  std::vector<Dims> sizes;
  for (size_t i = 0; i < call.operands.size(); ++i)
    sizes.push_back(sample_sizes(call.operands[i], signature.inputs[i], signature));
  const auto results = run(call, sizes);
  if (!results || results->size() != call.outputs.size()) return false;
  for (size_t i = 0; i < results->size(); ++i) {
    if (!(*results)[i].defined()) continue;
    Dims output((*results)[i].sizes());
    if (output.size() != signature.outputs[i].size()) return false;
    for (size_t dim = 0; dim < output.size(); ++dim)
      if (const Axis& axis = signature.outputs[i][dim]; may_be_sharded(axis, signature))
        output[dim] = signature.factors[axis.factor].size * axis.scale;
    call.outputs[i] = {output, dense_strides(output, (*results)[i].strides()), (*results)[i].scalar_type()};
  }
  return true;
}

DenseOutput describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {Dims(tensor.sizes()), Dims(tensor.strides()), tensor.scalar_type()};
}

/// The results of the call, lists flattened, on meta tensors of the global shapes. Throws: the operator's errors for these shapes and scalars.
std::vector<at::Tensor> run_on_meta(const OpCall& call) {
  const OutsideTracers outside;
  const ShapesAlone uncounted;
  const auto meta_like = [&](size_t operand) {
    const Spec& spec = *call.operands[operand].spec;
    return at::Tensor(at::detail::empty_strided_meta(spec.sizes(), spec.strides(), spec.dtype()));
  };
  return results_with(call, meta_like, c10::Device(c10::kMeta));
}

}  // namespace

std::vector<at::Tensor> results_with(const OpCall& call, const std::function<at::Tensor(size_t)>& stand_in,
                                     std::optional<c10::Device> device) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  for (c10::IValue& value : stack) {
    if (device && value.isDevice()) value = *device;
    if (value.isTensorList()) value = value.toTensorList().copy();
    if (value.isOptionalTensorList()) value = value.toOptionalTensorList().copy();
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    c10::IValue& value = stack[operand.arg];
    if (!operand.spec) {
      if (!device && value.isTensor() && value.toTensor().is_meta())  // next to samples, which have values
        value = at::ones({}, value.toTensor().options().device(c10::kCPU));
      continue;
    }
    if (value.isTensorList())
      value.toTensorList().set(operand.index, stand_in(i));
    else if (value.isOptionalTensorList())
      value.toOptionalTensorList().set(operand.index, stand_in(i));
    else
      value = stand_in(i);
  }
  {
    const BelowAutograd guard;
    call.op.handle.callBoxed(&stack);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
  }
  return results;
}

int OpCall::operand_at(size_t arg) const {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].arg == arg) return static_cast<int>(i);
  return -1;
}

// Tries the sample first: with Python loaded, most of torch's meta kernels are in Python and cost a hundred times as much.
bool infer_outputs(OpCall& call) {
  if (infer_from_sample(call)) return true;
  call.outputs.clear();
  std::vector<at::Tensor> results;
  try {
    results = run_on_meta(call);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    if (call.op.name.starts_with("aten::")) throw;
    return false;  // other libraries' meta kernels may only raise that there is none
  }
  for (const at::Tensor& tensor : results) call.outputs.push_back(describe(tensor));
  return true;
}

int64_t offset_of_view(const OpCall& call) {
  try {
    const std::vector<at::Tensor> results = run_on_meta(call);
    return results.size() == 1 && call.op.n_returns() == 1 ? results[0].storage_offset() : 0;
  } catch (const c10::NotImplementedError&) {
    return 0;  // no meta kernel: outputs come from a sample only
  }
}

}  // namespace shardwise
