#include "runtime/rules/propagate.h"

#include "placements/placement_list.h"
#include "runtime/rules/chooser.h"
#include "runtime/tensor/reordered_mesh.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>

namespace shardwise {
namespace {

bool is_on(const Operand& operand, const DeviceMesh& mesh) { return operand.spec->mesh().get() == &mesh; }

/// Copies go from device to device; other operators need a single device.
bool is_copy(const OpInfo& op) {
  return op.name == "aten::copy_" || op.name == "aten::copy" || op.name == "aten::_foreach_copy_";
}

/// The spec of `operand` on `mesh`: its own layout if the meshes differ only in the order of their dims, otherwise a replica. Throws:
/// c10::ValueError for an operand on another mesh, unless it is 0-dim: numbers move to the other operands' mesh.
SpecPtr follow(const OpCall& call, const Operand& operand, const MeshPtr& mesh) {
  const Spec& spec = *operand.spec;
  if (!operand.is_written && spec.mesh() != mesh)
    if (auto sibling = on_sibling(spec, mesh)) return sibling;
  const bool is_copied = is_copy(call.op) && spec.mesh()->with_memory() == mesh->with_memory();
  if ((spec.dim() > 0 || operand.is_written) && !is_copied) check_same_mesh(call.op.name, mesh, spec.mesh());
  return Spec::intern(mesh, spec.sizes(), std::vector<Placement>(mesh->ndim()), spec.strides(), spec.dtype());
}

/// The mesh of the first operand that has dims, or of the first operand. Null if all are on one mesh.
MeshPtr leading_mesh(const OpCall& call) {
  const Operand* leader = nullptr;
  bool several = false;
  for (const Operand& operand : call.operands) {
    if (!operand.spec) continue;
    several |= leader && !is_on(operand, *leader->spec->mesh());
    if (!leader || (leader->spec->dim() == 0 && operand.spec->dim() > 0)) leader = &operand;
  }
  return several ? leader->spec->mesh() : nullptr;
}

/// True if the leader, which is in pieces, may stay Partial: the operator is linear in it, and the other operands either have its layout
/// (if the operator is linear in all of them together) or are not Partial.
bool passes_sums(const OpCall& call, const Signature& signature, const Operand& leader) {
  if (signature.linearity == Linearity::kNone || !are_linear(leader.spec->placements()) || !holds_terms(call, leader))
    return false;
  if (signature.linearity == Linearity::kAll)
    return std::ranges::all_of(call.operands, [&](const Operand& operand) {
      return operand.spec && operand.spec->layout() == leader.spec->layout() && holds_terms(call, operand);
    });
  if (signature.linearity == Linearity::kFirst && &leader != &call.operands[0]) return false;
  return std::ranges::all_of(call.operands, [&](const Operand& operand) {
    return &operand == &leader || !operand.spec || !operand.spec->layout().has_terms();
  });
}

/// The same for the leader's element of the lists.
bool element_passes_sums(const OpCall& call, const Operand& leader, const DenseOutput& output) {
  if (!leader.spec || !leader.spec->layout().has_terms()) return false;
  OpCall one{call.op, call.args, {}, {output}, call.is_in_backward, {}};
  for (const Operand& operand : call.operands)
    if (operand.index == leader.index || !call.args[operand.arg].isTensorList()) one.operands.push_back(operand);
  return passes_sums(one, call.op.rule->signature(one), one.operands[0]);
}

/// Runs elementwise calls box by box if an operand is in pieces and the others can follow its layout.
std::optional<Propagation> propagate_boxes(const OpCall& call, const Signature& signature) {
  const Operand* leader = nullptr;
  for (const Operand& operand : call.operands)
    if (operand.spec && !operand.spec->layout().has_one_box_each() &&
        (!leader || (operand.is_written && !leader->is_written)))
      leader = &operand;
  if (!leader || !signature.is_pointwise) return std::nullopt;

  const bool is_sum = leader->spec->layout().has_terms() && passes_sums(call, signature, *leader);
  const Placements whole = without_partial(leader->spec->placements());
  const Placements placements = is_sum ? leader->spec->placements().vec() : whole;
  Propagation result;
  result.by_box = true;
  for (const Operand& operand : call.operands) {
    if (!operand.spec) {
      result.inputs.push_back({});
      continue;
    }
    const bool follows = operand.sizes == leader->sizes;
    const bool is_term = &operand == leader || signature.linearity == Linearity::kAll;
    auto spec = follows ? operand.spec->with_placements(is_term ? placements : whole) : operand.spec->replicated();
    if (spec != operand.spec && operand.is_written) return std::nullopt;
    result.inputs.push_back(spec != operand.spec ? std::move(spec) : SpecPtr());
  }
  for (const DenseOutput& dense : call.outputs) {
    if (dense.sizes != leader->sizes) return std::nullopt;
    result.outputs.push_back(placed_output(leader->spec->mesh(), dense, placements));
  }
  return result;
}

/// True if an operand has a strided Shard, and no operand has other pieces.
bool has_strided_alone(const OpCall& call) {
  bool any = false;
  for (const Operand& operand : call.operands) {
    if (!operand.spec || operand.spec->layout().has_one_box_each()) continue;
    if (!operand.spec->layout().joined_dim()) return false;
    any = true;
  }
  return any;
}

}  // namespace

SpecPtr placed_output(const MeshPtr& mesh, const DenseOutput& dense, Placements placements) {
  if (dense.dtype == c10::ScalarType::Undefined) return {};
  return Spec::intern(mesh, dense.sizes, std::move(placements), dense.strides, dense.dtype);
}

std::optional<Propagation> placed(const OpCall& call, const MeshPtr& mesh,
                                  const std::function<Placements(size_t number)>& placements_of) {
  Propagation result;
  for (const Operand& operand : call.operands) {
    SpecPtr to = operand.spec ? operand.spec->with_placements(placements_of(result.inputs.size())) : SpecPtr();
    const bool moves = to != operand.spec;
    if (moves && operand.is_written) return std::nullopt;
    result.inputs.push_back(moves ? std::move(to) : SpecPtr());
  }
  for (const DenseOutput& output : call.outputs)
    result.outputs.push_back(placed_output(mesh, output, placements_of(result.inputs.size() + result.outputs.size())));
  return result;
}

Propagation placed(const OpCall& call, const SpecPtr& input, Placements output) {
  Propagation result;
  result.inputs.push_back(input == call.operands[0].spec ? SpecPtr() : input);
  result.outputs.push_back(placed_output(input->mesh(), call.outputs[0], std::move(output)));
  return result;
}

std::optional<Propagation> propagate(const OpCall& call, const Signature& signature) {
  if (const MeshPtr mesh = leading_mesh(call)) {
    OpCall together = call;
    for (Operand& operand : together.operands)
      if (operand.spec && !is_on(operand, *mesh)) operand.spec = follow(call, operand, mesh);
    auto result = propagate(together, signature);
    for (size_t i = 0; result && i < call.operands.size(); ++i)
      if (!result->inputs[i] && together.operands[i].spec != call.operands[i].spec)
        result->inputs[i] = together.operands[i].spec;
    return result;
  }
  if (has_strided_alone(call)) return choose_strided(call, signature);
  if (auto by_box = propagate_boxes(call, signature)) return by_box;
  return choose(call, signature);
}

std::optional<Propagation> propagate_per_element(const OpCall& call) {
  Propagation result;
  std::vector<const Operand*> leaders;
  std::vector<bool> are_sums;  // by element: whether it stays Partial
  for (const Operand& operand : call.operands) {
    if (operand.arg == call.operands[0].arg) {
      leaders.push_back(&operand);
      const size_t i = operand.index;
      const DenseOutput written{{}, {}, operand.spec ? operand.spec->dtype() : c10::ScalarType::Undefined};
      are_sums.push_back(element_passes_sums(call, operand, i < call.outputs.size() ? call.outputs[i] : written));
    }
    const Operand* leader = operand.index < leaders.size() ? leaders[operand.index] : nullptr;
    const bool is_of_list = leader && call.args[operand.arg].isTensorList();
    if (is_of_list && !at::is_expandable_to(operand.sizes, leader->sizes)) return std::nullopt;
    SpecPtr moved;
    const bool is_term = is_of_list && operand.spec && operand.spec->layout().has_terms() && are_sums[operand.index];
    if (operand.spec && leader && leader->spec && !is_term) {
      const bool follows = is_of_list && operand.sizes == leader->sizes;
      const MeshPtr& mesh = leader->spec->mesh();
      auto spec = follow(call, operand, mesh)->replicated();
      if (follows) spec = spec->with_placements(without_partial(leader->spec->placements()));
      if (spec != operand.spec) moved = std::move(spec);
    }
    result.inputs.push_back(std::move(moved));
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const DenseOutput& dense = call.outputs[i];
    const Spec& like = *leaders[i]->spec;
    auto placements = are_sums[i] ? like.placements().vec() : without_partial(like.placements());
    result.outputs.push_back(placed_output(like.mesh(), dense, std::move(placements)));
  }
  return result;
}

Propagation propagate_shape(const OpCall& call) {
  Propagation result;
  result.inputs.resize(call.operands.size());
  const Spec& like = *call.operands[0].spec;
  for (const DenseOutput& dense : call.outputs) {
    const bool same = dense.sizes == like.sizes();
    auto placements = same ? without_partial(like.placements()) : std::vector<Placement>(like.placements().size());
    result.outputs.push_back(placed_output(like.mesh(), dense, std::move(placements)));
  }
  return result;
}

}  // namespace shardwise
