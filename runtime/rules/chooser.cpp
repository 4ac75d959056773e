#include "runtime/rules/chooser.h"

#include "placements/placement_list.h"
#include "runtime/rules/move_bytes.h"

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

/// The role of one mesh dimension in a call.
struct Choice {
  enum class Kind : uint8_t { kReplicate, kPartial, kFactor };
  Kind kind = Kind::kReplicate;
  int factor = -1;              // kFactor
  PassingPartial partial = {};  // kPartial
};

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

}  // namespace

int dim_with(const Axes& axes, int factor) {
  for (size_t dim = 0; dim < axes.size(); ++dim)
    if (axes[dim].factor == factor) return static_cast<int>(dim);
  return -1;
}

bool holds_terms(const OpCall& call, const Operand& operand) {
  const int needed = max_exponent(operand.spec->dtype());
  return std::ranges::all_of(call.outputs, [&](const DenseOutput& output) {
    return output.dtype == c10::ScalarType::Undefined || output.dtype == operand.spec->dtype() ||
           (needed > 0 && needed <= max_exponent(output.dtype));
  });
}

namespace {

class Chooser {
 public:
  Chooser(const OpCall& call, const Signature& signature) : call_(call), signature_(signature) {
    for (const Operand& operand : call.operands)
      if (operand.spec) mesh_ = operand.spec->mesh();
  }

  std::optional<Propagation> run() {
    for (int64_t mesh_dim = 0; mesh_dim < mesh_->ndim(); ++mesh_dim) {
      auto choice = cheapest(mesh_dim);
      if (!choice) return std::nullopt;
      choices_.push_back(*choice);
    }
    for (size_t factor = 0; factor < signature_.factors.size(); ++factor)
      shardings_.push_back(sharding_of(static_cast<int>(factor)));

    return placed(call_, mesh_, [&, n = call_.operands.size()](size_t i) {
      return i < n ? placements_of(signature_.inputs[i], static_cast<int>(i))
                   : placements_of(signature_.outputs[i - n], -1);
    });
  }

 private:
  /// The placement of operand `i` (or of an output if i is -1) under `choice`; nothing if it is impossible.
  std::optional<Placement> placement(const Choice& choice, const Axes& axes, int i) const {
    switch (choice.kind) {
      case Choice::Kind::kReplicate:
        return Placement::replicate();
      case Choice::Kind::kPartial: {
        const auto& [reduce, result, operands] = choice.partial;
        if (i < 0) return Placement::partial(result);
        const bool is_term = operands.empty() || std::ranges::count(operands, i) > 0 || is_additive(i);
        return is_term ? Placement::partial(reduce) : Placement::replicate();
      }
      case Choice::Kind::kFactor:
        break;
    }
    if (int dim = dim_with(axes, choice.factor); dim >= 0) return Placement::shard(dim);
    if (signature_.factors[choice.factor].is_whole) return Placement::replicate();
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
    for (const PassingPartial& partial : signature_.passing)
      if (is_there(partial, mesh_dim)) result.push_back({Choice::Kind::kPartial, -1, partial});
    for (size_t factor = 0; factor < signature_.factors.size(); ++factor) {
      const bool is_input = std::ranges::any_of(
          signature_.inputs, [&](const Axes& axes) { return dim_with(axes, static_cast<int>(factor)) >= 0; });
      // A mesh dim of one rank divides nothing: a whole factor stays whole there, and outputs without it are whole.
      if (is_input && (!signature_.factors[factor].is_whole || mesh_->size(mesh_dim) == 1))
        result.push_back({Choice::Kind::kFactor, static_cast<int>(factor)});
    }
    return result;
  }

  /// True if the first operand of `partial` is Partial on this mesh dim; if it lists none, one of the call's.
  bool is_there(const PassingPartial& partial, int64_t mesh_dim) const {
    const auto is_partial = [&](const Operand& operand) {
      return operand.spec && operand.spec->placements()[mesh_dim].is_alike(Placement::partial(partial.reduce));
    };
    return partial.operands.empty() ? std::ranges::any_of(call_.operands, is_partial)
                                    : is_partial(call_.operands[partial.operands[0]]);
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
      if (!is_linear(reduce) && signature_.linearity != Linearity::kPass) continue;
      result.push_back({Choice::Kind::kPartial, -1, {reduce, reduce, {}}});
      if (each) result.back().partial.operands = {static_cast<int>(i)};
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
  MeshPtr mesh_;
  std::vector<Choice> choices_;
  std::vector<std::shared_ptr<Layout>> shardings_;
};

}  // namespace

std::optional<Propagation> choose(const OpCall& call, const Signature& signature) {
  return Chooser(call, signature).run();
}

}  // namespace shardwise
