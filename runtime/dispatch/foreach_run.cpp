#include "runtime/dispatch/foreach_run.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/local_run.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/traced_pieces.h"
#include "text/check.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace shardwise {
namespace {

class ForeachRun {
 public:
  ForeachRun(BoundCall& call, const Propagation& propagation) : call_(call), propagation_(propagation) {
    CommScope scope(call.op.name.c_str());
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const BoundOperand& operand = call.operands[i];
      const SpecPtr& to = propagation.inputs[i];
      shards_.push_back(!operand.impl ? Shards{} : to ? moved(call, operand, to) : operand.impl->local_tensors());
      if (operand.arg == call.operands[0].arg) n_pieces_.push_back(shards_[i].size());
    }
    join_pieces();
  }

  void run() {
    size_t total = 0;
    for (size_t n : n_pieces_) total += n;
    torch::jit::Stack stack(call_.args().begin(), call_.args().end());
    if (total > 0) {
      for (size_t arg = 0; arg < stack.size(); ++arg) stack[arg] = flattened(arg);
      copy_shared(stack);
      call_.op.handle.callBoxed(&stack);
    }
    return_written();
    finish(total > 0 && !propagation_.outputs.empty() ? stack[0].toTensorVector() : std::vector<at::Tensor>());
  }

 private:
  const Spec* spec_of(size_t i) const { return call_.spec_of(i, propagation_); }

  /// An element whose operands all have the same layout with joined boxes, or are numbers, becomes one tensor.
  void join_pieces() {
    leaders_.resize(n_pieces_.size());
    is_flat_.resize(n_pieces_.size());
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Spec* spec = spec_of(i);
      const size_t element = call_.operands[i].index;
      if (element >= n_pieces_.size() || !call_.stack[call_.first + call_.operands[i].arg].isTensorList()) continue;
      if (call_.operands[i].arg == call_.operands[0].arg) {
        leaders_[element] = spec;
        is_flat_[element] = spec && spec->flat_sizes() && n_pieces_[element] > 1 && !is_traced(shards_[i]);
      } else if (spec && is_flat_[element] && !(spec->layout() == leaders_[element]->layout())) {
        is_flat_[element] =
            spec->numel() == 1 && static_cast<size_t>(spec->dim()) <= leaders_[element]->flat_sizes()->size();
      }
    }
    for (size_t element = 0; element < is_flat_.size(); ++element)
      if (is_flat_[element]) n_pieces_[element] = 1;
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
      if (operand.index < is_flat_.size() && is_flat_[operand.index] && operand.impl && spec_of(i)->flat_sizes()) {
        tensors.push_back(flat_part(*spec_of(i), shards_[i]));
        continue;
      }
      const size_t n = operand.index < n_pieces_.size() ? n_pieces_[operand.index] : 1;
      const Spec* leader = operand.index < leaders_.size() ? leaders_[operand.index] : nullptr;
      const bool is_replica =
          operand.impl && leader && operand.impl->sizes() != leader->sizes() && operand.impl->dim() <= leader->dim();
      const bool follows = shards_[i].size() == n;  // otherwise each piece takes the same replica or plain scalar
      for (size_t piece = 0; piece < n; ++piece)
        tensors.push_back(!operand.impl ? list[operand.index].toTensor()
                          : is_replica  ? narrowed_to(shards_[i][0], leader->boxes()[piece])
                                        : shards_[i][follows ? piece : 0]);
    }
    return tensors;
  }

  /// The kernel gets copies of elements that overlap the element that it writes.
  void copy_shared(torch::jit::Stack& stack) const {
    for (const auto& [read, written] : call_.shared) {
      const auto [arg, index] = std::pair(call_.operands[read].arg, call_.operands[read].index);
      if (index >= n_pieces_.size()) continue;
      const size_t begin = std::accumulate(n_pieces_.begin(), n_pieces_.begin() + index, size_t{0});
      const auto pieces = [&](uint32_t of_arg) {
        const std::vector<at::Tensor> all = stack[of_arg].toTensorVector();
        return Shards(all.data() + begin, all.data() + begin + n_pieces_[index]);
      };
      Shards copies = pieces(arg);
      copy_overwritten(pieces(call_.operands[written].arg), copies);
      for (size_t piece = 0; piece < copies.size(); ++piece)
        stack[arg].toTensorList().set(begin + piece, copies[piece]);
    }
  }

  /// The written argument whose values nobody reads after the call: the gradients, unless a fused step divides them by a scale. The number of
  /// arguments if there is none.
  size_t scratch_arg() const {
    const OpInfo& op = call_.op;
    if (op.rule->scratch().empty()) return op.n_args();
    const auto scale = op.handle.schema().argumentIndexWithName("grad_scale");
    const bool is_read = scale && !call_.args()[static_cast<size_t>(*scale)].isNone();
    return is_read ? op.n_args() : op.arg_index(op.rule->scratch());
  }

  /// Moves written operands back to their own layout, if they had to move because they are Partial or laid out unlike their element of the
  /// first list. Scratch operands keep their old values.
  void return_written() {
    const CommScope scope(call_.op.name.c_str());
    const size_t scratch = scratch_arg();
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const BoundOperand& operand = call_.operands[i];
      if (!propagation_.inputs[i] || !call_.op.args[operand.arg].is_written || operand.arg == scratch) continue;
      const Shards& own = operand.impl->shards();
      const Shards written = move(propagation_.inputs[i], shards_[i], operand.impl->spec());
      for (size_t piece = 0; piece < own.size(); ++piece)
        if (!written[piece].is_same(own[piece])) own[piece].copy_(written[piece]);
    }
  }

  void finish(const std::vector<at::Tensor>& pieces) {
    call_.stack.resize(call_.first);
    if (propagation_.outputs.empty()) return;
    c10::List<at::Tensor> results;
    auto next = pieces.begin();
    for (size_t i = 0; i < propagation_.outputs.size(); ++i) {
      const SpecPtr& spec = propagation_.outputs[i];
      results.push_back(is_flat_[i]
                            ? wrap(spec, pieces_of(*spec, spec->layout().joined_dim() ? *next : next->contiguous()))
                            : wrap(spec, Shards(next, next + static_cast<std::ptrdiff_t>(n_pieces_[i]))));
      next += static_cast<std::ptrdiff_t>(n_pieces_[i]);
    }
    call_.stack.emplace_back(std::move(results));
  }

  BoundCall& call_;
  const Propagation& propagation_;
  std::vector<Shards> shards_;        // by operand
  std::vector<size_t> n_pieces_;      // by list element
  std::vector<const Spec*> leaders_;  // by list element: the spec in the first list
  std::vector<bool> is_flat_;         // by list element: one call for all pieces of a ragged layout
};

/// Elements of the lists that run in one call.
struct ElementGroup {
  const DeviceMesh* mesh;  // null: plain tensors
  std::vector<size_t> elements;
};

/// The mesh of element `i` in the first list, or in any other list. Null if it is plain in all lists.
const DeviceMesh* mesh_of_element(c10::ArrayRef<c10::IValue> args, size_t n, size_t i) {
  for (const c10::IValue& arg : args) {
    if (!arg.isTensorList() || arg.toListRef().size() != n) continue;
    if (const auto* impl = maybe_dtensor(arg.toListRef()[i].toTensor())) return impl->spec()->mesh().get();
  }
  return nullptr;
}

/// The groups in order of first appearance, plain elements last.
std::vector<ElementGroup> groups_of(c10::ArrayRef<c10::IValue> args) {
  std::vector<ElementGroup> groups;
  ElementGroup plain{nullptr, {}};
  const size_t n = args[0].toListRef().size();
  for (size_t i = 0; i < n; ++i) {
    const DeviceMesh* mesh = mesh_of_element(args, n, i);
    const auto known = std::ranges::find(groups, mesh, &ElementGroup::mesh);
    if (!mesh)
      plain.elements.push_back(i);
    else if (known == groups.end())
      groups.push_back({mesh, {i}});
    else
      known->elements.push_back(i);
  }
  if (!plain.elements.empty()) groups.push_back(std::move(plain));
  return groups;
}

bool is_distributed_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0 && is_dtensor(value.toTensor());
}

/// The value of a distributed number, for a call with plain elements.
c10::IValue plain_number(const OpInfo& op, const at::Tensor& number) {
  const SpecPtr& spec = spec_of(number);
  SW_CHECK_NOT_IMPLEMENTED(spec->is_member(),
                           "[{}] mixes plain tensors with a number on the mesh {}. Rank {} is outside that mesh and "
                           "does not have the number's value. Give the number as a plain tensor.",
                           op.name, to_string(*spec->mesh()), spec->mesh()->rank());
  const CommScope scope(op.name.c_str());
  return move(spec, maybe_dtensor(number)->shards(), spec->replicated()).at(0);
}

/// These elements of `value` if it is a list of `n`; anything else unchanged.
c10::IValue elements_of(const c10::IValue& value, size_t n, const std::vector<size_t>& elements) {
  if (!value.isList() || value.toListRef().size() != n) return value;
  c10::impl::GenericList part(value.toList().elementType());
  for (size_t i : elements) part.push_back(value.toListRef()[i]);
  return part;
}

/// One call per group. Puts the results in the place of the arguments.
void run_groups(const OpInfo& op, torch::jit::Stack& stack, const std::vector<ElementGroup>& groups) {
  const size_t first = stack.size() - op.n_args();
  const std::vector<c10::IValue> args(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  const size_t n = args[0].toListRef().size();
  std::vector<at::Tensor> results(n);
  for (const auto& [mesh, elements] : groups) {
    torch::jit::Stack part;
    for (const c10::IValue& arg : args)
      part.push_back(!mesh && is_distributed_number(arg) ? plain_number(op, arg.toTensor())
                                                         : elements_of(arg, n, elements));
    if (mesh)
      dispatch(op, &part);
    else
      op.handle.callBoxed(&part);
    if (!part.empty())
      for (size_t i = 0; i < elements.size(); ++i) results[elements[i]] = part[0].toListRef()[i].toTensor();
  }
  stack.resize(first);
  if (op.n_returns() > 0) stack.emplace_back(std::move(results));
}

/// True if an element must see what the call writes to another one: elements share memory, and operands move or are copied, which would
/// happen before the first write.
bool needs_order(const BoundCall& call, const Propagation& propagation) {
  const auto& operands = call.operands;
  const auto moves = [](const SpecPtr& to) { return to != nullptr; };
  if (operands.size() < 2 || (call.shared.empty() && std::ranges::none_of(propagation.inputs, moves))) return false;
  const auto memory_of = [](const DTensorImpl& tensor) -> const void* {
    const void* const shared = tensor.known_memory();
    return shared ? shared : &tensor;
  };
  std::unordered_map<const void*, size_t> writers;  // elements, by memory
  const auto is_shared = [&](const BoundOperand& operand) {
    const auto writer = operand.impl ? writers.find(memory_of(*operand.impl)) : writers.end();
    return writer != writers.end() && writer->second != operand.index;
  };
  for (const BoundOperand& operand : operands)
    if (operand.impl && call.op.args[operand.arg].is_written) writers.emplace(memory_of(*operand.impl), operand.index);
  return std::ranges::any_of(operands, is_shared);
}

}  // namespace

void count_writes(const OpInfo& op, size_t arg, at::TensorList tensors) {
  const bool is_fused = !op.rule->scratch().empty();
  if (is_fused && arg == op.arg_index(op.rule->scratch())) return;
  for (const at::Tensor& tensor : tensors)
    if (is_dtensor(tensor) && !(is_fused && tensor.is_inference())) tensor.unsafeGetTensorImpl()->bump_version();
}

bool dispatch_by_mesh(const OpInfo& op, torch::jit::Stack& stack) {
  const c10::ArrayRef<c10::IValue> given = torch::jit::last(stack, op.n_args());
  if (!given[0].isTensorList()) return false;
  const auto groups = groups_of(given);
  const bool is_plain = groups.size() == 1 && !groups[0].mesh && std::ranges::any_of(given, &is_distributed_number);
  if (groups.size() < 2 && !is_plain) return false;

  run_groups(op, stack, groups);
  return true;
}

void run_foreach(BoundCall& call, const Decision& decision) {
  if (needs_order(call, *decision.propagation)) {
    std::vector<ElementGroup> groups;
    for (size_t i = 0; i < call.args()[0].toListRef().size(); ++i)
      groups.push_back({call.leader().spec()->mesh().get(), {i}});
    return run_groups(call.op, call.stack, groups);
  }
  for (size_t arg = 0; arg < call.op.n_args(); ++arg)
    if (call.op.args[arg].is_written) count_writes(call.op, arg, call.arg(arg).toTensorVector());
  BelowAutograd guard;
  ForeachRun(call, *decision.propagation).run();
}

}  // namespace shardwise
