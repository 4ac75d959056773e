// runtime/dispatch/bound_call.h: the tensors of one call, found on the stack.
#pragma once

#include "runtime/dispatch/decision.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// A tensor argument (or list element) as it stands on the stack; `impl` is null for a plain 0-dim tensor.
struct BoundOperand {
  DTensorImpl* impl = nullptr;
  uint32_t arg = 0;
  uint32_t index = 0;
};

/// One call in progress. Holds no reference: the stack does, until the arguments are replaced.
struct BoundCall {
  const OpInfo& op;
  torch::jit::Stack& stack;
  size_t first;  // where the arguments begin on the stack
  c10::SmallVector<BoundOperand, 8> operands;
  DecisionKey key;
  const DTensorImpl* in_pieces = nullptr;  // an operand that was given as pieces with offsets
  std::vector<at::Tensor> written_views;   // copied views that the call writes to

  BoundCall(const OpInfo& op, torch::jit::Stack& stack);
  c10::IValue& arg(size_t i) { return stack[first + i]; }
  c10::ArrayRef<c10::IValue> args() const { return c10::ArrayRef<c10::IValue>(stack.data() + first, op.n_args()); }
  /// The first distributed operand. Pre: there is one.
  const DTensorImpl& leader() const;
  OpCall to_op_call() const;

 private:
  void bind_tensor(const at::Tensor& tensor, size_t arg, size_t index);
  /// Puts a replica in the place of a plain tensor and returns it. Throws: c10::ValueError where check_plain() does.
  at::Tensor replicate(const at::Tensor& plain, size_t arg, size_t index);
  /// True for the one number that a fused optimizer takes beside its lists.
  bool is_rate(const at::Tensor& tensor, size_t arg) const;
  /// True for the elements of the first list, as which those of the others are laid out.
  bool leads_element(size_t arg) const;
};

/// Throws: c10::Error for an expanded tensor, which has several elements in one place. What a rank holds of it may have one, or a copy: the
/// ranks would not agree on whether the kernel refuses it.
void check_writable(const std::string& op, const Spec& spec);

/// Tells those who have read `impl` that an operator writes to it.
void note_written(DTensorImpl& impl);

/// The first distributed tensor among the arguments of a call, in lists too; null without one.
const DTensorImpl* first_distributed(c10::ArrayRef<c10::IValue> args);

/// Puts `tensor` in the place of an argument, or of element `index` of a list.
void replace_tensor(c10::IValue& value, size_t index, const at::Tensor& tensor);

}  // namespace shardwise
