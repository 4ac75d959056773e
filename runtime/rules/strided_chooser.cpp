#include "placements/placement_list.h"
#include "runtime/rules/chooser.h"

#include <algorithm>

namespace shardwise {
namespace {

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
    auto result = choose(plain, signature_);
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
    if (leader && (is_divided_elsewhere() || is_led_by_a_shard(*leader))) factor_ = -1;
  }

  /// True if a larger operand, or a written one, is a Shard along the kept factor: then the strided ones move.
  bool is_led_by_a_shard(const Operand& strided) const {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const int dim = dim_with(signature_.inputs[i], factor_);
      if (operand.spec && dim >= 0 && operand.spec->placements()[mesh_dim_].is_shard(dim) &&
          rank_of(operand) > rank_of(strided))
        return true;
    }
    return false;
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

  static std::pair<bool, int64_t> rank_of(const Operand& operand) {
    return {operand.is_written, operand.spec->numel()};
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
    return Spec::intern(spec.mesh(), spec.sizes(), std::move(placements), spec.strides(), spec.dtype());
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

}  // namespace

std::optional<Propagation> choose_strided(const OpCall& call, const Signature& signature) {
  return StridedChooser(call, signature).run();
}

}  // namespace shardwise
