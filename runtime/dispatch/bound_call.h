// runtime/dispatch/bound_call.h: the tensors of one call, found on the stack. Binding sends nothing; prepare_arguments()
// (runtime/dispatch/prepare_arguments.h), which may send, runs before.
#pragma once

#include "runtime/dispatch/decision.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace shardwise {

/// A tensor argument (or list element) on the stack; `impl` is null for a plain 0-dim tensor.
struct BoundOperand {
  DTensorImpl* impl = nullptr;
  uint32_t arg = 0;
  uint32_t index = 0;
};

/// True if `read` is another tensor than `written` and shares its memory. Either may be null.
inline bool share_memory(const DTensorImpl* written, const DTensorImpl* read) {
  return written && read && written != read && written->known_memory() &&
         written->known_memory() == read->known_memory();
}

/// One call in progress. Holds no references to the tensors: the stack does, until the arguments are replaced.
struct BoundCall {
  const OpInfo& op;
  torch::jit::Stack& stack;
  size_t first;  // index of the first argument on the stack
  c10::SmallVector<BoundOperand, 8> operands;
  DecisionKey key;
  const DTensorImpl* formed = nullptr;      // an operand with a local form
  const DTensorImpl* subclass = nullptr;    // an operand whose local tensor is a subclass
  std::vector<at::Tensor> written_views;    // copied views that the call writes to
  c10::SmallVector<MemoryWrite, 2> writes;  // in progress, to tensors that have views or aliases
  /// Pairs of operands, by their places in `operands`: the second is written, and shares memory with the first, another tensor. If they are elements
  /// of lists, they have the same index. Tracers see no such pairs.
  c10::SmallVector<std::pair<uint32_t, uint32_t>, 1> shared;

  BoundCall(const OpInfo& op, torch::jit::Stack& stack);
  c10::IValue& arg(size_t i) { return stack[first + i]; }
  c10::ArrayRef<c10::IValue> args() const { return c10::ArrayRef<c10::IValue>(stack.data() + first, op.n_args()); }
  /// The first distributed operand. Pre: there is one.
  const DTensorImpl& leader() const;
  /// The layout in which operand `i` is read; null for a plain number.
  const Spec* spec_of(size_t i, const Propagation& propagation) const {
    if (propagation.inputs[i]) return propagation.inputs[i].get();
    return operands[i].impl ? operands[i].impl->spec().get() : nullptr;
  }
  OpCall to_op_call() const;

 private:
  void bind_tensor(const at::Tensor& tensor, size_t arg, size_t index);
  void find_shared();
};

/// Calls `visit(tensor, argument, index)` for the tensors among the arguments of a call and in their lists. `visit` may replace the argument.
template <class Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> args, const Visit& visit) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].isTensor()) {
      visit(args[i].toTensor(), i, 0);
    } else if (args[i].isTensorList() || args[i].isOptionalTensorList()) {
      const size_t n = args[i].toListRef().size();
      for (size_t j = 0; j < n; ++j)
        if (const c10::IValue& element = args[i].toListRef()[j]; element.isTensor()) visit(element.toTensor(), i, j);
    }
  }
}

/// The first distributed tensor among the arguments of a call, including lists; null if there is none.
const DTensorImpl* first_distributed(c10::ArrayRef<c10::IValue> args);

/// Replaces an argument, or element `index` of a list, with `tensor`.
void replace_tensor(c10::IValue& value, size_t index, const at::Tensor& tensor);

}  // namespace shardwise
