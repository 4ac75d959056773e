#include "runtime/dispatch/foreach_run.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"

namespace shardwise {
namespace {

class ElementRun {
 public:
  ElementRun(BoundCall& call, const Propagation& propagation) : call_(call), propagation_(propagation) {
    CommScope scope(call.op.name.c_str());
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const BoundOperand& operand = call.operands[i];
      const SpecPtr& to = propagation.inputs[i];
      shards_.push_back(!operand.impl ? Shards{}
                        : to          ? move(operand.impl->spec(), operand.impl->shards(), to)
                                      : operand.impl->shards());
      if (operand.arg == call.operands[0].arg) n_pieces_.push_back(shards_[i].size());
    }
  }

  void run() {
    size_t total = 0;
    for (size_t n : n_pieces_) total += n;
    torch::jit::Stack stack(call_.args().begin(), call_.args().end());
    if (total > 0) {
      for (size_t arg = 0; arg < stack.size(); ++arg) stack[arg] = flattened(arg);
      call_.op.handle.callBoxed(&stack);
    }
    finish(total > 0 && !propagation_.outputs.empty() ? stack[0].toTensorVector() : std::vector<at::Tensor>());
  }

 private:
  c10::IValue flattened(size_t arg) const {
    const c10::IValue& value = call_.stack[call_.first + arg];
    if (value.isTensorList()) return flattened_tensors(value, arg);
    if (value.isTensor())
      for (size_t i = 0; i < call_.operands.size(); ++i)
        if (call_.operands[i].arg == arg && call_.operands[i].impl) return shards_[i].at(0);
    if (!value.isList() || value.toListRef().size() != n_pieces_.size()) return value;
    c10::impl::GenericList scalars(value.toList().elementType());
    for (size_t j = 0; j < n_pieces_.size(); ++j)
      for (size_t piece = 0; piece < n_pieces_[j]; ++piece) scalars.push_back(value.toListRef()[j]);
    return scalars;
  }

  c10::IValue flattened_tensors(const c10::IValue& value, size_t arg) const {
    c10::List<at::Tensor> tensors;
    const auto list = value.toListRef();
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const BoundOperand& operand = call_.operands[i];
      if (operand.arg != arg) continue;
      const size_t n = operand.index < n_pieces_.size() ? n_pieces_[operand.index] : 1;
      const bool follows = shards_[i].size() == n;  // otherwise one replica, or a plain scalar, for each piece
      for (size_t piece = 0; piece < n; ++piece)
        tensors.push_back(!operand.impl ? list[operand.index].toTensor() : shards_[i][follows ? piece : 0]);
    }
    return tensors;
  }

  void finish(const std::vector<at::Tensor>& pieces) {
    call_.stack.resize(call_.first);
    if (propagation_.outputs.empty()) return;
    c10::List<at::Tensor> results;
    auto next = pieces.begin();
    for (size_t i = 0; i < propagation_.outputs.size(); ++i) {
      results.push_back(wrap(propagation_.outputs[i], Shards(next, next + static_cast<std::ptrdiff_t>(n_pieces_[i]))));
      next += static_cast<std::ptrdiff_t>(n_pieces_[i]);
    }
    call_.stack.emplace_back(std::move(results));
  }

  BoundCall& call_;
  const Propagation& propagation_;
  std::vector<Shards> shards_;    // by operand
  std::vector<size_t> n_pieces_;  // by list element
};

}  // namespace

void run_foreach(BoundCall& call, const Decision& decision) {
  BelowAutograd guard;
  ElementRun(call, *decision.propagation).run();
}

}  // namespace shardwise
