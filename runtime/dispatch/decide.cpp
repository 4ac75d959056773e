#include "runtime/dispatch/decide.h"

#include "placements/placement_list.h"
#include "runtime/redistribute/execute.h"
#include "runtime/rules/op_call.h"
#include "runtime/rules/rule.h"

#include <algorithm>

namespace shardwise {
namespace {

const Spec* input_spec(const OpCall& call, const Propagation& propagation, size_t i) {
  return propagation.inputs[i] ? propagation.inputs[i].get() : call.operands[i].spec.get();
}

bool is_partial_or_empty(const SpecPtr& output) {
  return !output || output->layout().has_terms() || std::ranges::all_of(output->boxes(), &Box::empty);
}

/// True if no local input has an element although the global tensors do. Many kernels refuse empty inputs, and the result is known without
/// them. Tensors that are empty on all ranks do go to the kernel, which may refuse them alike on every rank.
bool may_skip(const OpCall& call, const Propagation& propagation) {
  bool any = false;
  if (std::ranges::all_of(call.operands,
                          [](const Operand& operand) { return !operand.spec || operand.spec->numel() == 0; }))
    return false;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Spec* spec = input_spec(call, propagation, i);
    if (!spec) continue;
    any = true;
    if (!std::ranges::all_of(spec->boxes(), &Box::empty)) return false;
  }
  return any && std::ranges::all_of(propagation.outputs, is_partial_or_empty);
}

/// True if the kernel sees no element of some operand here but other ranks have some. Many kernels check dtypes and numbers only if there
/// are elements.
bool lacks_elements(const OpCall& call, const Propagation& propagation) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Spec* spec = input_spec(call, propagation, i);
    if (spec && spec->numel() > 0 && std::ranges::all_of(spec->boxes(), &Box::empty)) return true;
  }
  return false;
}

std::vector<std::vector<std::pair<size_t, c10::IValue>>> localize(const Rule& rule, const OpCall& call,
                                                                  const Propagation& propagation) {
  std::vector<std::vector<std::pair<size_t, c10::IValue>>> result;
  const Spec* any = rule.is_shape_only() ? propagation.outputs[0].get() : nullptr;
  for (size_t i = 0; i < call.operands.size() && !any; ++i) any = input_spec(call, propagation, i);
  const size_t n_pieces = propagation.joined ? 1 : any->boxes().size();
  const auto box_of = [&](const Spec* spec, size_t piece) {
    if (spec && propagation.joined && spec->flat_sizes()) return Box::whole(*spec->flat_sizes());
    return spec && piece < spec->boxes().size() ? spec->boxes()[piece] : Box{};
  };
  for (size_t piece = 0; piece < n_pieces; ++piece) {
    std::vector<Box> inputs, outputs;
    for (size_t i = 0; i < call.operands.size(); ++i) inputs.push_back(box_of(input_spec(call, propagation, i), piece));
    for (const SpecPtr& spec : propagation.outputs) outputs.push_back(box_of(spec.get(), piece));

    std::vector<c10::IValue> args = call.args.vec();
    rule.localize({call, inputs, outputs}, args);
    auto& changed = result.emplace_back();
    for (size_t i = 0; i < args.size(); ++i)
      if (!args[i].isSameIdentity(call.args[i])) changed.emplace_back(i, std::move(args[i]));
  }
  if (std::ranges::all_of(result, [](const auto& changed) { return changed.empty(); })) result.clear();
  return result;
}

/// The propagation of a rule that places its results itself. It supports listed pieces, and ranges on a 1-D mesh; on other meshes the mesh dim that
/// is in pieces is gathered first. A strided Shard that the rule does not keep becomes a Shard.
std::optional<Propagation> placed(const OpCall& call, const Rule& rule) {
  OpCall known = call;
  for (Operand& operand : known.operands)
    if (operand.spec && !operand.spec->layout().has_one_box_each() && !operand.spec->layout().enumerated() &&
        !rule.is_for_strided()) {
      if (operand.is_written) return std::nullopt;
      operand.spec = operand.spec->with_placements(without_boxes(operand.spec->placements()));
    }
  auto result = rule.place()(known);
  for (size_t i = 0; result && i < call.operands.size(); ++i)
    if (!result->inputs[i] && known.operands[i].spec != call.operands[i].spec)
      result->inputs[i] = known.operands[i].spec;
  return result;
}

bool is_one_piece(const Spec* spec) { return !spec || spec->boxes().size() == 1; }

/// True if operand i is an element of a list that is broadcast to its element of the first list, so that each rank takes a part of it.
bool is_broadcast_in_list(const OpCall& call, size_t i) {
  const Operand& operand = call.operands[i];
  if (!operand.spec || operand.spec->numel() == 1 || !call.args[operand.arg].isTensorList()) return false;
  const Operand& leader = call.operands[operand.index];  // the first list's elements are the first operands
  return operand.sizes != leader.sizes;
}

bool is_direct(const OpCall& call, const Decision& decision) {
  const Rule& rule = *call.op.rule;
  const Propagation& propagation = *decision.propagation;
  if (decision.moves || decision.may_be_refused_on_other_ranks || decision.view_offset != 0 || propagation.by_box ||
      propagation.joined || rule.is_shape_only())
    return false;
  if (!rule.takes_sizes() && (rule.kernel() || !decision.local_args.empty())) return false;
  if (!rule.is_per_element() && (propagation.outputs.empty() || !propagation.outputs[0])) return false;
  for (size_t i = 0; i < call.operands.size(); ++i)
    if (!is_one_piece(input_spec(call, propagation, i)) || (rule.is_per_element() && is_broadcast_in_list(call, i)))
      return false;
  return std::ranges::all_of(propagation.outputs, [](const SpecPtr& spec) { return is_one_piece(spec.get()); });
}

/// Removes the moves that would leave on every rank what it has. So results are computed from the operands themselves, and views share their memory.
void leave_in_place(const OpCall& call, Propagation& propagation) {
  for (size_t i = 0; i < call.operands.size(); ++i)
    if (const SpecPtr& to = propagation.inputs[i]; to && leaves_in_place(*call.operands[i].spec, *to))
      propagation.inputs[i] = nullptr;
}

/// Throws: c10::NotImplementedError if values would have to come from meta tensors; also on ranks whose pieces are empty.
void put_outputs_on(c10::DeviceType device_type, const OpCall& call, Propagation& propagation) {
  const bool has_values = call.op.rule->is_shape_only() || device_type == c10::kMeta ||
                          std::ranges::none_of(call.operands, [](const Operand& operand) {
                            return operand.spec && operand.spec->mesh()->is_meta();
                          });
  TORCH_CHECK_NOT_IMPLEMENTED(has_values, "[", call.op.name,
                              "] Cannot copy out of meta tensor; no data! Use torch.empty_like(x, device=...) or "
                              "Module.to_empty(), and fill it.");
  for (SpecPtr& output : propagation.outputs)
    if (output) output = output->on(device_type);
}

}  // namespace

Decision decide(OpCall& call) {
  Decision decision;
  const Rule* rule = call.op.rule;
  if (!rule) return decision;
  const bool needs_outputs = !(rule->is_per_element() && call.op.writes);
  if (needs_outputs && !infer_outputs(call)) return decision;

  if (rule->is_per_element())
    decision.propagation = propagate_per_element(call);
  else if (rule->is_shape_only())
    decision.propagation = propagate_shape(call);
  else if (rule->place())
    decision.propagation = placed(call, *rule);
  else
    decision.propagation = propagate(call, rule->signature(call));
  if (!decision.propagation) return decision;

  for (const c10::IValue& value : call.args)
    if (value.isDevice()) put_outputs_on(value.toDevice().type(), call, *decision.propagation);

  leave_in_place(call, *decision.propagation);
  const Propagation& propagation = *decision.propagation;
  decision.moves = std::ranges::any_of(propagation.inputs, [](const SpecPtr& spec) { return static_cast<bool>(spec); });
  for (size_t i = 0; i < call.operands.size(); ++i)
    decision.copied_view |= propagation.inputs[i] && call.op.is_view && call.op.args[call.operands[i].arg].is_aliased;
  if (call.op.is_view) decision.view_offset = offset_of_view(call);
  if (!rule->is_per_element() && !rule->is_shape_only()) {
    decision.is_skipped = may_skip(call, propagation);
    decision.may_be_refused_on_other_ranks = lacks_elements(call, propagation);
  }
  if (decision.may_be_refused_on_other_ranks && !call.refusal)
    decision.accepted_numbers = numbers_of(call.op, call.args);
  if (rule->has_local_args()) decision.local_args = localize(*rule, call, propagation);
  decision.is_direct = is_direct(call, decision);
  return decision;
}

std::vector<c10::IValue> numbers_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  std::vector<c10::IValue> numbers;
  for (size_t i = 0; i < args.size(); ++i)
    if (op.args[i].is_number) numbers.push_back(args[i]);
  return numbers;
}

}  // namespace shardwise
