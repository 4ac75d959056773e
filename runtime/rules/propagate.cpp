#include "runtime/rules/propagate.h"

#include "placements/placement_list.h"
#include "runtime/rules/move_bytes.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/reordered_mesh.h"

#include <ATen/ExpandUtils.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace shardwise {
namespace {

/// The role of one mesh dimension in a call.
struct Choice {
  enum class Kind : uint8_t { kReplicate, kPartial, kFactor };
  Kind kind = Kind::kReplicate;
  int factor = -1;               // kFactor
  Reduce reduce = Reduce::kSum;  // kPartial
  int operand = -1;              // kPartial: the only partial operand, or -1 for all
};

/// The tensor dim of `axes` that has `factor`, or -1.
int dim_with(const Axes& axes, int factor) {
  for (size_t dim = 0; dim < axes.size(); ++dim)
    if (axes[dim].factor == factor) return static_cast<int>(dim);
  return -1;
}

/// The largest exponent of a floating or complex dtype. 0 for other dtypes, because their sums change in another dtype: integers wrap
/// around, and a sum of bools means "any".
int max_exponent(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case c10::ScalarType::Half:
      return std::numeric_limits<c10::Half>::max_exponent;
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
      return std::numeric_limits<float>::max_exponent;
    case c10::ScalarType::Double:
      return std::numeric_limits<double>::max_exponent;
    default:
      return 0;
  }
}

/// True if the outputs for the terms of `operand` add up to the output for its sum. This needs outputs of the operand's dtype, or of one
/// with at least its range: terms of 70,000 and -60,000 are infinite in half, but their sum is not.
bool holds_terms(const OpCall& call, const Operand& operand) {
  const int needed = max_exponent(operand.spec->dtype());
  return std::ranges::all_of(call.outputs, [&](const DenseOutput& output) {
    return output.dtype == c10::ScalarType::Undefined || output.dtype == operand.spec->dtype() ||
           (needed > 0 && needed <= max_exponent(output.dtype));
  });
}

class Chooser {
 public:
  Chooser(const OpCall& call, const Signature& signature) : call_(call), signature_(signature) {
    for (const Operand& operand : call.operands)
      if (operand.spec) mesh_ = operand.spec->mesh().get();
  }

  std::optional<Propagation> run() {
    for (int64_t mesh_dim = 0; mesh_dim < mesh_->ndim(); ++mesh_dim) {
      auto choice = cheapest(mesh_dim);
      if (!choice) return std::nullopt;
      choices_.push_back(*choice);
    }
    for (size_t factor = 0; factor < signature_.factors.size(); ++factor)
      shardings_.push_back(sharding_of(static_cast<int>(factor)));

    Propagation result;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      if (!operand.spec) {
        result.inputs.push_back({});
        continue;
      }
      auto spec = operand.spec->with_placements(placements_of(signature_.inputs[i], static_cast<int>(i)));
      const bool moves = spec != operand.spec;
      if (moves && operand.is_written) return std::nullopt;
      result.inputs.push_back(moves ? std::move(spec) : SpecPtr());
    }
    for (size_t i = 0; i < call_.outputs.size(); ++i) {
      const DenseOutput& dense = call_.outputs[i];
      if (dense.dtype == c10::ScalarType::Undefined) {
        result.outputs.push_back({});
        continue;
      }
      result.outputs.push_back(Spec::intern(mesh_->shared_from_this(), dense.sizes,
                                            placements_of(signature_.outputs[i], -1), dense.strides, dense.dtype));
    }
    return result;
  }

 private:
  /// The placement of operand `i` (or of an output if i is -1) under `choice`; nothing if it is impossible.
  std::optional<Placement> placement(const Choice& choice, const Axes& axes, int i) const {
    switch (choice.kind) {
      case Choice::Kind::kReplicate:
        return Placement::replicate();
      case Choice::Kind::kPartial:
        return i < 0 || choice.operand < 0 || choice.operand == i || is_additive(i) ? Placement::partial(choice.reduce)
                                                                                    : Placement::replicate();
      case Choice::Kind::kFactor:
        break;
    }
    if (int dim = dim_with(axes, choice.factor); dim >= 0) return Placement::shard(dim);
    if (i < 0) {
      const auto& reduce = signature_.factors[choice.factor].reduce;
      return reduce ? std::optional(Placement::partial(*reduce)) : std::nullopt;
    }
    return is_additive(i) && is_reduced(choice.factor) ? Placement::partial(Reduce::kSum) : Placement::replicate();
  }

  bool is_additive(int i) const { return std::ranges::count(signature_.additive, i) > 0; }

  bool is_reduced(int factor) const {
    return std::ranges::any_of(signature_.outputs, [&](const Axes& axes) { return dim_with(axes, factor) < 0; });
  }

  std::vector<Choice> candidates(int64_t mesh_dim) const {
    std::vector<Choice> result{{}};
    if (signature_.linearity != Linearity::kNone) add_partials(mesh_dim, result);
    for (size_t factor = 0; factor < signature_.factors.size(); ++factor) {
      const bool is_input = std::ranges::any_of(
          signature_.inputs, [&](const Axes& axes) { return dim_with(axes, static_cast<int>(factor)) >= 0; });
      if (!signature_.factors[factor].is_whole && is_input)
        result.push_back({Choice::Kind::kFactor, static_cast<int>(factor)});
    }
    return result;
  }

  void add_partials(int64_t mesh_dim, std::vector<Choice>& result) const {
    const bool first = signature_.linearity == Linearity::kFirst;
    const bool each = signature_.linearity == Linearity::kEach || first;
    const auto passes = [&](const Operand& operand) {
      return !operand.spec || !operand.spec->placements()[mesh_dim].is_partial() || holds_terms(call_, operand);
    };
    if (!each && !std::ranges::all_of(call_.operands, passes)) return;
    for (size_t i = 0; i < (first ? 1 : call_.operands.size()); ++i) {
      const Operand& operand = call_.operands[i];
      if (!operand.spec || !operand.spec->placements()[mesh_dim].is_partial() || !passes(operand)) continue;
      if (each && is_additive(static_cast<int>(i))) continue;  // the product would be counted on every rank
      const Reduce reduce = operand.spec->placements()[mesh_dim].reduce();
      if (is_linear(reduce) || signature_.linearity == Linearity::kPass)
        result.push_back({Choice::Kind::kPartial, -1, reduce, each ? static_cast<int>(i) : -1});
    }
  }

  /// Bytes that a rank receives to bring operand `i` from its placement on `mesh_dim` to `to`.
  int64_t cost(const Operand& operand, const Axes& axes, int64_t mesh_dim, const Placement& to) const {
    const Placement& from = operand.spec->placements()[mesh_dim];
    const bool stays = from.is_shard() && to.is_shard(from.dim()) && divides(*operand.spec, axes[to.dim()], to.dim());
    return stays ? 0 : bytes_to_move(*operand.spec, mesh_dim, to);
  }

  /// True if `tensor_dim` is split only between whole indices of its factor.
  static bool divides(const Spec& spec, const Axis& axis, int64_t tensor_dim) {
    if (axis.scale == 1) return true;
    return std::ranges::all_of(spec.layout().shard_intervals(tensor_dim), [&](const Interval& interval) {
      return interval.begin % axis.scale == 0 && interval.end % axis.scale == 0;
    });
  }

  std::optional<Choice> cheapest(int64_t mesh_dim) const {
    std::optional<Choice> best;
    std::pair<int64_t, int64_t> best_cost;
    for (const Choice& choice : candidates(mesh_dim)) {
      auto price = price_of(choice, mesh_dim);
      if (price && (!best || *price < best_cost)) {
        best = choice;
        best_cost = *price;
      }
    }
    return best;
  }

  /// True if some operand is already sharded along `factor` on `mesh_dim`.
  bool is_sharded(int factor, int64_t mesh_dim) const {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const int dim = dim_with(signature_.inputs[i], factor);
      if (operand.spec && dim >= 0 && operand.spec->placements()[mesh_dim].is_shard(dim)) return true;
    }
    return false;
  }

  /// The bytes moved and the number of operands changed; nothing if the choice is impossible. Two prices look ahead:
  ///   - A reduce-scatter of a Partial operand along a factor that no operand is sharded along costs as much as the whole all-reduce, because
  ///     the result is likely to be gathered later.
  ///   - Passing a Partial on saves its reduction only if nothing moves for it and no replica is added to it. Otherwise weights would be
  ///     gathered to compute the whole product on each rank, or a residual stream would stay Partial and be reduced again for each reader. In
  ///     a backward the sum stays Partial: its only reader is the previous operator, and each layer of the stream adds another Partial.
  std::optional<std::pair<int64_t, int64_t>> price_of(const Choice& choice, int64_t mesh_dim) const {
    std::pair<int64_t, int64_t> price{0, 0};
    const bool is_new_sharding = choice.kind == Choice::Kind::kFactor && !is_sharded(choice.factor, mesh_dim);
    bool adds_values = false;  // whether replicas are added to the terms of a Partial
    for (size_t i = 0; i < signature_.outputs.size(); ++i) {
      const auto to = placement(choice, signature_.outputs[i], -1);
      const Operand* written = written_as(i);
      if (!to || (written && !to->is_alike(written->spec->placements()[mesh_dim]))) return std::nullopt;
    }
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const Placement to = *placement(choice, signature_.inputs[i], static_cast<int>(i));
      if (!operand.spec) {
        if (to.is_partial()) return std::nullopt;  // a plain scalar would be counted on every rank
        continue;
      }
      if (to.is_alike(operand.spec->placements()[mesh_dim])) {
        price.first += cost(operand, signature_.inputs[i], mesh_dim, to);
        continue;
      }
      if (operand.is_written) return std::nullopt;
      adds_values |= to.is_partial() && signature_.linearity == Linearity::kAll && !call_.is_in_backward;
      const bool is_half = is_new_sharding && operand.spec->placements()[mesh_dim].is_partial();
      price.first += cost(operand, signature_.inputs[i], mesh_dim, to) * (is_half ? 2 : 1);
      ++price.second;
    }
    if (choice.kind == Choice::Kind::kPartial && (price.first > 0 || adds_values))
      for (size_t i = 0; i < call_.operands.size(); ++i)
        if (const Operand& operand = call_.operands[i];
            operand.spec && operand.spec->placements()[mesh_dim].is_partial() &&
            placement(choice, signature_.inputs[i], static_cast<int>(i))->is_partial())
          price.first += cost(operand, signature_.inputs[i], mesh_dim, Placement::replicate());
    return price;
  }

  /// The distributed operand that is returned as output `i`, or null.
  const Operand* written_as(size_t i) const {
    const int arg = i < call_.op.n_returns() ? call_.op.returned_arg[i] : -1;
    const int operand = arg < 0 ? -1 : call_.operand_at(static_cast<size_t>(arg));
    return operand < 0 || !call_.operands[operand].spec ? nullptr : &call_.operands[operand];
  }

  /// How the mesh dims that chose `factor` shard it, as a layout of a 1-D tensor of the factor's size. Null if none did.
  std::shared_ptr<Layout> sharding_of(int factor) const {
    std::vector<Placement> sharding(mesh_->ndim());
    bool any = false;
    for (int64_t m = 0; m < mesh_->ndim(); ++m)
      if (choices_[m].kind == Choice::Kind::kFactor && choices_[m].factor == factor) {
        sharding[m] = Placement::shard(0);
        any = true;
      }
    if (!any) return nullptr;
    if (auto led = leading_sharding(factor, sharding)) sharding = *led;
    return std::make_shared<Layout>(Dims{signature_.factors[factor].size}, mesh_->grid_ptr(), sharding);
  }

  /// The sharding of the factor that the largest operand already has, a written one first, in units of the factor.
  std::optional<std::vector<Placement>> leading_sharding(int factor, const std::vector<Placement>& wanted) const {
    const Operand* leader = nullptr;
    std::vector<Placement> best;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const int dim = dim_with(signature_.inputs[i], factor);
      if (!operand.spec || dim < 0) continue;
      const int64_t scale = signature_.inputs[i][dim].scale;
      if (!is_sharded_as(*operand.spec, dim, wanted) || !divides(*operand.spec, signature_.inputs[i][dim], dim))
        continue;
      auto rank_of = [](const Operand& o) { return std::pair(o.is_written, o.spec->numel()); };
      if (leader && rank_of(operand) <= rank_of(*leader)) continue;
      leader = &operand;
      best = operand.spec->layout().resized(dim, [&](int64_t index) { return index / scale; });
      for (size_t m = 0; m < best.size(); ++m)
        best[m] = wanted[m].is_shard() ? best[m].with_dim(0) : Placement::replicate();
    }
    return leader ? std::optional(best) : std::nullopt;
  }

  static bool is_sharded_as(const Spec& spec, int64_t dim, const std::vector<Placement>& wanted) {
    for (size_t m = 0; m < wanted.size(); ++m)
      if (spec.placements()[m].places_boxes() || spec.placements()[m].is_shard(dim) != wanted[m].is_shard())
        return false;
    return true;
  }

  std::vector<Placement> placements_of(const Axes& axes, int i) const {
    std::vector<Placement> result;
    for (const Choice& choice : choices_) result.push_back(*placement(choice, axes, i));
    for (size_t dim = 0; dim < axes.size(); ++dim) {
      const Axis& axis = axes[dim];
      if (axis.factor < 0 || !shardings_[axis.factor]) continue;
      const Layout& sharding = *shardings_[axis.factor];
      auto scaled = axis.scale == 1 ? sharding.placements().vec()
                                    : sharding.resized(0, [&](int64_t index) { return index * axis.scale; });
      for (size_t m = 0; m < result.size(); ++m)
        if (scaled[m].is_shard()) result[m] = scaled[m].with_dim(static_cast<int64_t>(dim));
    }
    return result;
  }

  const OpCall& call_;
  const Signature& signature_;
  const DeviceMesh* mesh_ = nullptr;
  std::vector<Choice> choices_;
  std::vector<std::shared_ptr<Layout>> shardings_;
};

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
    result.outputs.push_back(Spec::intern(leader->spec->mesh(), dense.sizes, placements, dense.strides, dense.dtype));
  }
  return result;
}

/// Chooses as if the strided Shards along one factor were Shards of the same dims, and names them again in the result: the indices of a factor may come
/// in any order that all operands share. Other strided Shards become Shards.
class StridedChooser {
 public:
  StridedChooser(const OpCall& call, const Signature& signature) : call_(call), signature_(signature) {
    if (!call.op.rule || !call.op.rule->has_positions()) find_kept();
  }

  std::optional<Propagation> run() {
    OpCall plain = call_;
    for (size_t i = 0; i < call_.operands.size(); ++i)
      if (const SpecPtr& spec = call_.operands[i].spec; spec && spec->layout().joined_dim())
        plain.operands[i].spec = is_kept(signature_.inputs[i], *spec)
                                     ? changed(*spec, Placement::shard(*spec->layout().joined_dim(), extents_))
                                     : spec->with_placements(without_boxes(spec->placements()));
    auto result = Chooser(plain, signature_).run();
    if (!result) return result;
    for (size_t i = 0; i < call_.operands.size(); ++i)
      if (call_.operands[i].spec && !result->inputs[i]) result->inputs[i] = plain.operands[i].spec;
    if (factor_ >= 0 && is_divided_again(*result)) {
      factor_ = -1;
      return run();
    }
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      SpecPtr& chosen = result->inputs[i];
      if (!chosen) continue;
      name_again(signature_.inputs[i], chosen, *result);
      if (chosen == call_.operands[i].spec)
        chosen.reset();
      else if (call_.operands[i].is_written)
        return std::nullopt;
    }
    for (size_t i = 0; i < result->outputs.size(); ++i)
      if (result->outputs[i]) name_again(signature_.outputs[i], result->outputs[i], *result);
    return result;
  }

 private:
  /// The strided Shard of the largest operand, a written one first, whose dim is a factor that may be sharded. None if other mesh dims divide that
  /// dim, or if an operand or an output has several elements per index of the factor.
  void find_kept() {
    const Operand* leader = nullptr;
    const auto rank_of = [](const Operand& o) { return std::pair(o.is_written, o.spec->numel()); };
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const auto dim = operand.spec ? operand.spec->layout().joined_dim() : std::nullopt;
      if (!dim || (leader && rank_of(operand) <= rank_of(*leader))) continue;
      const int factor = signature_.inputs[i][*dim].factor;
      const auto is_single = [&](const Axes& axes) {
        return dim_with(axes, factor) < 0 || axes[dim_with(axes, factor)].scale == 1;
      };
      if (factor < 0 || signature_.factors[factor].is_whole || operand.spec->layout().splits(*dim) ||
          !std::ranges::all_of(signature_.inputs, is_single) || !std::ranges::all_of(signature_.outputs, is_single))
        continue;
      leader = &operand;
      factor_ = factor;
      keep(*operand.spec, *dim);
    }
    if (leader && is_divided_elsewhere()) factor_ = -1;
  }

  /// True if an operand is divided along the kept factor by another mesh dim.
  bool is_divided_elsewhere() const {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const int dim = dim_with(signature_.inputs[i], factor_);
      if (!call_.operands[i].spec || dim < 0) continue;
      const auto placements = call_.operands[i].spec->placements();
      for (size_t m = 0; m < placements.size(); ++m)
        if (m != mesh_dim_ && placements[m].divided_dim() == dim) return true;
    }
    return false;
  }

  void keep(const Spec& spec, int64_t dim) {
    const auto placements = spec.placements();
    mesh_dim_ = std::ranges::find(placements, dim, &Placement::strided_dim) - placements.begin();
    split_factor_ = placements[mesh_dim_].split_factor();
    const RankGrid& grid = spec.layout().grid();
    Dims coord(grid.shape.size(), 0);
    extents_.clear();
    for (; coord[mesh_dim_] < grid.shape[mesh_dim_]; ++coord[mesh_dim_])
      extents_.push_back((*spec.layout().flat_sizes(grid.rank_at(coord)))[dim]);
  }

  /// True if the kept mesh dim divides `spec` along the kept factor.
  bool is_along(const Axes& axes, const Spec& spec) const {
    const int dim = factor_ < 0 ? -1 : dim_with(axes, factor_);
    return dim >= 0 && spec.placements()[mesh_dim_].divided_dim() == dim;
  }
  bool is_kept(const Axes& axes, const Spec& spec) const {
    return is_along(axes, spec) && spec.placements()[mesh_dim_].split_factor() == split_factor_;
  }

  SpecPtr changed(const Spec& spec, Placement placement) const {
    std::vector<Placement> placements = spec.placements().vec();
    placements[mesh_dim_] = std::move(placement);
    return spec.with_placements(std::move(placements));
  }

  void name_again(const Axes& axes, SpecPtr& spec, Propagation& result) const {
    if (!is_along(axes, *spec)) return;
    spec = changed(*spec, Placement::strided_shard(dim_with(axes, factor_), split_factor_));
    result.joined = true;
  }

  /// True if another mesh dim divides the kept factor, too.
  bool is_divided_again(const Propagation& result) const {
    const auto divides = [&](const Axes& axes, const SpecPtr& spec) {
      return spec && is_along(axes, *spec) &&
             spec->layout().n_parts(dim_with(axes, factor_)) > static_cast<int64_t>(extents_.size());
    };
    for (size_t i = 0; i < result.inputs.size(); ++i)
      if (divides(signature_.inputs[i], result.inputs[i])) return true;
    for (size_t i = 0; i < result.outputs.size(); ++i)
      if (divides(signature_.outputs[i], result.outputs[i])) return true;
    return false;
  }

  const OpCall& call_;
  const Signature& signature_;
  int factor_ = -1;  // -1: no strided Shard is kept
  size_t mesh_dim_ = 0;
  int64_t split_factor_ = 1;
  std::vector<int64_t> extents_;  // of the ranks' local tensors along the factor
};

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
  if (has_strided_alone(call)) return StridedChooser(call, signature).run();
  if (auto by_box = propagate_boxes(call, signature)) return by_box;
  return Chooser(call, signature).run();
}

std::optional<Propagation> propagate_per_element(const OpCall& call) {
  Propagation result;
  std::vector<const Operand*> leaders;
  for (const Operand& operand : call.operands) {
    if (operand.arg == call.operands[0].arg) leaders.push_back(&operand);
    const Operand* leader = operand.index < leaders.size() ? leaders[operand.index] : nullptr;
    const bool is_of_list = leader && call.args[operand.arg].isTensorList();
    if (is_of_list && !at::is_expandable_to(operand.sizes, leader->sizes)) return std::nullopt;
    SpecPtr moved;
    if (operand.spec && leader && leader->spec) {
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
    result.outputs.push_back(
        Spec::intern(like.mesh(), dense.sizes, without_partial(like.placements()), dense.strides, dense.dtype));
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
    result.outputs.push_back(Spec::intern(like.mesh(), dense.sizes, std::move(placements), dense.strides, dense.dtype));
  }
  return result;
}

}  // namespace shardwise
