// runtime/rules/op_call.h: one call of an operator as rules see it: layouts, scalars and the dense outputs' shapes, but no values.
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/spec.h"

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <exception>
#include <functional>
#include <vector>

namespace shardwise {

/// A tensor argument, or one element of a tensor list. Undefined and absent tensors are not operands.
struct Operand {
  SpecPtr spec;  // null for a 0-dim torch.Tensor, which counts as replicated
  c10::IntArrayRef sizes;
  size_t arg = 0;    // position in the schema
  size_t index = 0;  // index in the list, otherwise 0
  bool is_written = false;
};

/// The shape of one dense output, equal to that of the call on unsharded tensors.
struct DenseOutput {
  Dims sizes;
  Dims strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined: the output is an undefined tensor
};

struct OpCall {
  const OpInfo& op;
  c10::ArrayRef<c10::IValue> args;
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<DenseOutput, 2> outputs;  // flattened over tensor lists
  bool is_in_backward = false;               // in a backward that records nothing
  std::exception_ptr refusal;                // the kernel's error for a small sample of the operands, if any

  const c10::IValue& arg(std::string_view name) const { return args[op.arg_index(name)]; }
  /// The index of the operand at argument `arg` (of element 0 for a list); -1 if it is absent.
  int operand_at(size_t arg) const;
  int operand_at(std::string_view name) const { return operand_at(op.arg_index(name)); }
  /// The schema's name of the operand's argument, as in "weight".
  const std::string& name_of(const Operand& operand) const {
    return op.handle.schema().arguments()[operand.arg].name();
  }
};

/// The results of the call, lists flattened, with `stand_in(i)` in place of each distributed operand i, below autograd. `device`: in place of all
/// devices among the arguments, if given.
std::vector<at::Tensor> results_with(const OpCall& call, const std::function<at::Tensor(size_t)>& stand_in,
                                     std::optional<c10::Device> device = std::nullopt);

/// Runs the operator on meta tensors of the global shapes and fills `call.outputs`.
/// Throws: the errors of the dense operator for these shapes and scalars (equal on all ranks, before any message).
/// Returns false if the operator has neither a meta kernel nor a sampled() rule, or if its output's shape depends on values.
bool infer_outputs(OpCall& call);

/// The offset of the call's only result in the tensor that it views, in elements of the result.
int64_t offset_of_view(const OpCall& call);

}  // namespace shardwise
