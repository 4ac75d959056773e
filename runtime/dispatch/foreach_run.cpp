#include "runtime/dispatch/foreach_run.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/operand_move.h"
#include "runtime/redistribute/execute.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"

#include <algorithm>

namespace shardwise {
namespace {

class ForeachRun {
 public:
  ForeachRun(BoundCall& call, const Propagation& propagation) : call_(call), propagation_(propagation) {
    CommScope scope(call.op.name.c_str());
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const BoundOperand& operand = call.operands[i];
      const SpecPtr& to = propagation.inputs[i];
      shards_.push_back(!operand.impl ? Shards{} : to ? moved(operand, to) : operand.impl->shards());
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
    give_back();
    finish(total > 0 && !propagation_.outputs.empty() ? stack[0].toTensorVector() : std::vector<at::Tensor>());
  }

 private:
  /// What the kernel writes to is its own.
  Shards moved(const BoundOperand& operand, const SpecPtr& to) const {
    return call_.op.args[operand.arg].is_written ? move(operand.impl->spec(), operand.impl->shards(), to)
                                                 : move_operand(*operand.impl, to);
  }

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

  /// What was written to an element that is laid out otherwise than the first list's goes back to it: it keeps its layout.
  void give_back() const {
    const CommScope scope(call_.op.name.c_str());
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const auto& [impl, arg, index] = call_.operands[i];
      const SpecPtr& from = propagation_.inputs[i];
      const bool is_scratch = call_.op.handle.schema().arguments()[arg].name() == call_.op.rule->scratch();
      if (!impl || !from || !call_.op.args[arg].is_written || is_scratch) continue;
      const Shards pieces = move(from, shards_[i], impl->spec());
      for (size_t piece = 0; piece < pieces.size(); ++piece)
        if (const at::Tensor& own = impl->shards()[piece]; !pieces[piece].is_same(own)) own.copy_(pieces[piece]);
    }
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

/// The elements of the first list by mesh. Plain ones go with the first mesh.
std::vector<std::vector<size_t>> elements_by_mesh(const c10::IValue& list) {
  std::vector<std::pair<const DeviceMesh*, std::vector<size_t>>> groups;
  std::vector<size_t> plain;
  for (size_t i = 0; i < list.toListRef().size(); ++i) {
    const auto* impl = maybe_dtensor(list.toListRef()[i].toTensor());
    const DeviceMesh* mesh = impl ? impl->spec()->mesh().get() : nullptr;
    auto group = std::ranges::find(groups, mesh, &std::pair<const DeviceMesh*, std::vector<size_t>>::first);
    if (!mesh)
      plain.push_back(i);
    else if (group == groups.end())
      groups.push_back({mesh, {i}});
    else
      group->second.push_back(i);
  }
  std::vector<std::vector<size_t>> result;
  for (auto& [mesh, elements] : groups) result.push_back(std::move(elements));
  if (!result.empty()) result[0].insert(result[0].end(), plain.begin(), plain.end());
  return result;
}

/// These elements of a list that has one for each of `n`; anything else as it is.
c10::IValue elements_of(const c10::IValue& value, size_t n, const std::vector<size_t>& elements) {
  if (!value.isList() || value.toListRef().size() != n) return value;
  c10::impl::GenericList part(value.toList().elementType());
  for (size_t i : elements) part.push_back(value.toListRef()[i]);
  return part;
}

}  // namespace

bool dispatch_by_mesh(const OpInfo& op, torch::jit::Stack& stack) {
  const size_t first = stack.size() - op.n_args();
  if (!stack[first].isTensorList()) return false;
  const size_t n = stack[first].toListRef().size();
  const auto groups = elements_by_mesh(stack[first]);
  if (groups.size() < 2) return false;

  const std::vector<c10::IValue> args(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  std::vector<at::Tensor> results(n);
  for (const auto& elements : groups) {
    torch::jit::Stack part;
    for (const c10::IValue& arg : args) part.push_back(elements_of(arg, n, elements));
    dispatch(op, &part);
    if (!part.empty())
      for (size_t i = 0; i < elements.size(); ++i) results[elements[i]] = part[0].toListRef()[i].toTensor();
  }
  stack.resize(first);
  if (op.n_returns() > 0) stack.emplace_back(std::move(results));
  return true;
}

void run_foreach(BoundCall& call, const Decision& decision) {
  BelowAutograd guard;
  ForeachRun(call, *decision.propagation).run();
  const size_t scratch =
      call.op.rule->scratch().empty() ? call.op.n_args() : call.op.arg_index(call.op.rule->scratch());
  for (const BoundOperand& operand : call.operands)  // torch leaves that to the kernels of lists
    if (operand.impl && call.op.args[operand.arg].is_written && operand.arg != scratch && !operand.impl->is_inference())
      operand.impl->bump_version();
}

}  // namespace shardwise
