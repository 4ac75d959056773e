#include "runtime/rules/acceptable_sharding.h"

#include "placements/placement_list.h"
#include "runtime/rules/move_bytes.h"
#include "text/check.h"

#include <algorithm>
#include <map>
#include <set>

namespace shardwise {
namespace {

using MeshDims = std::set<int64_t>;

/// A tensor of the call and its new placements. Operands come first, then outputs.
struct PlacedTensor {
  const Spec* spec;  // of an operand; null for outputs and plain operands
  bool is_written;
  Dims sizes;
  Placements placements;

  /// The mesh dims that shard `dim`.
  MeshDims sharding(int64_t dim) const {
    const auto mesh_dims = mesh_dims_splitting(placements, dim);
    return {mesh_dims.begin(), mesh_dims.end()};
  }
};

Placement with_positive_dim(const OpCall& call, const Placement& placement, size_t n_dims) {
  const auto n = static_cast<int64_t>(n_dims);
  SW_CHECK_INDEX(placement.fits_dims(n),
                 "[register_sharding] {} of {} is for a tensor of {} dims. Use a dim in [{}, {}).",
                 to_string(placement), call.op.name, n, -n, n);
  return placement.is_shard() ? Placement::shard(placement.with_dim_from_zero(n).dim()) : placement;
}

class ShardingChoice {
 public:
  ShardingChoice(const OpCall& call, c10::ArrayRef<AcceptableSharding> shardings) : call_(call) {
    for (const Operand& operand : call.operands)
      if (operand.spec) mesh_ = operand.spec->mesh();
    for (const Operand& operand : call.operands)
      if (operand.spec) check_same_mesh(call.op.name, mesh_, operand.spec->mesh());
    for (const AcceptableSharding& sharding : shardings) shardings_.push_back(checked(sharding));
  }

  std::optional<Propagation> run() {
    for (const Operand& operand : call_.operands)
      tensors_.push_back({operand.spec.get(), operand.is_written, Dims(operand.sizes), {}});
    for (const DenseOutput& output : call_.outputs) tensors_.push_back({nullptr, false, output.sizes, {}});
    for (int64_t m = 0; m < mesh_->ndim(); ++m) {
      const AcceptableSharding* best = cheapest(m);
      if (!best) return std::nullopt;
      for (size_t i = 0; i < tensors_.size(); ++i)
        tensors_[i].placements.push_back(placement(*best, i).value_or(Placement::replicate()));
    }
    split_alike();
    return placed(call_, mesh_, [&](size_t i) { return tensors_[i].placements; });
  }

 private:
  AcceptableSharding checked(const AcceptableSharding& given) const {
    SW_CHECK_VALUE(
        given.inputs.size() == call_.operands.size() && given.outputs.size() == call_.outputs.size(),
        "[register_sharding] a sharding of {} has {} output and {} input placements, but the call has {} outputs and "
        "{} input tensors. Give one placement per tensor, and None for an argument that is not a tensor.",
        call_.op.name, given.outputs.size(), given.inputs.size(), call_.outputs.size(), call_.operands.size());
    AcceptableSharding result = given;
    for (size_t i = 0; i < given.inputs.size(); ++i)
      if (auto& each = result.inputs[i]) each = with_positive_dim(call_, *each, call_.operands[i].sizes.size());
    for (size_t i = 0; i < given.outputs.size(); ++i)
      if (auto& each = result.outputs[i]) each = with_positive_dim(call_, *each, call_.outputs[i].sizes.size());
    return result;
  }

  const std::optional<Placement>& placement(const AcceptableSharding& sharding, size_t tensor) const {
    const size_t n_inputs = call_.operands.size();
    return tensor < n_inputs ? sharding.inputs[tensor] : sharding.outputs[tensor - n_inputs];
  }

  const AcceptableSharding* cheapest(int64_t mesh_dim) const {
    const AcceptableSharding* best = nullptr;
    std::pair<int64_t, int64_t> best_price;
    for (const AcceptableSharding& sharding : shardings_) {
      const auto price = price_of(sharding, mesh_dim);
      if (price && (!best || *price < best_price)) best = &sharding, best_price = *price;
    }
    return best;
  }

  /// The bytes moved and the number of operands changed; nothing if the sharding does not fit.
  std::optional<std::pair<int64_t, int64_t>> price_of(const AcceptableSharding& sharding, int64_t mesh_dim) const {
    if (!has_fitting_lengths(sharding)) return std::nullopt;
    std::pair<int64_t, int64_t> price{0, 0};
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const Placement to = sharding.inputs[i].value_or(Placement::replicate());
      if (!operand.spec) {
        if (to.is_whole()) continue;
        return std::nullopt;  // a plain number is the same on every rank
      }
      const Placement& from = operand.spec->placements()[mesh_dim];
      if (from.is_alike(to)) continue;
      if (operand.is_written) return std::nullopt;
      price.first += bytes_to_move(*operand.spec, mesh_dim, to);
      ++price.second;
    }
    return keeps_written(sharding) ? std::optional(price) : std::nullopt;
  }

  /// True if outputs that are operands have the operands' placements.
  bool keeps_written(const AcceptableSharding& sharding) const {
    for (size_t i = 0; i < call_.outputs.size() && i < call_.op.n_returns(); ++i) {
      const int arg = call_.op.returned_arg[i];
      const int operand = arg < 0 ? -1 : call_.operand_at(static_cast<size_t>(arg));
      if (operand >= 0 && sharding.inputs[operand] && sharding.outputs[i] &&
          !sharding.inputs[operand]->is_alike(*sharding.outputs[i]))
        return false;
    }
    return true;
  }

  bool has_fitting_lengths(const AcceptableSharding& sharding) const {
    const std::set<int64_t> lengths = sharded_lengths(sharding);
    return lengths.size() <= 1 ||
           std::ranges::all_of(lengths, [&](int64_t length) { return length % mesh_->size() == 0; });
  }

  std::set<int64_t> sharded_lengths(const AcceptableSharding& sharding) const {
    std::set<int64_t> lengths;
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (const auto& each = placement(sharding, i); each && each->is_shard())
        lengths.insert(tensors_[i].sizes[each->dim()]);
    return lengths;
  }

  /// Gives Shards of dims that go together the extents that the largest operand (a written one first) has there.
  void split_alike() {
    std::map<MeshDims, const PlacedTensor*> leaders;
    const auto weight = [](const PlacedTensor& tensor) { return std::pair(tensor.is_written, tensor.spec->numel()); };
    for (const PlacedTensor& tensor : tensors_) {
      for (int64_t dim = 0; tensor.spec && dim < tensor.spec->dim(); ++dim) {
        const MeshDims dims = tensor.sharding(dim);
        if (dims.empty() || !goes_together(dims) || !is_sharded_so(tensor, dim)) continue;
        const PlacedTensor*& leader = leaders[dims];
        if (!leader || weight(*leader) < weight(tensor)) leader = &tensor;
      }
    }
    for (PlacedTensor& tensor : tensors_)
      for (int64_t dim = 0; dim < static_cast<int64_t>(tensor.sizes.size()); ++dim)
        if (const auto leader = leaders.find(tensor.sharding(dim)); leader != leaders.end())
          for (const int64_t m : leader->first)
            tensor.placements[m] = leader->second->spec->placements()[m].with_dim(dim);
  }

  /// True if every dim that one of these mesh dims shards is sharded by all of them, and all such dims have one length.
  bool goes_together(const MeshDims& mesh_dims) const {
    std::set<int64_t> lengths;
    for (const PlacedTensor& tensor : tensors_)
      for (int64_t dim = 0; dim < static_cast<int64_t>(tensor.sizes.size()); ++dim) {
        const MeshDims own = tensor.sharding(dim);
        if (own == mesh_dims)
          lengths.insert(tensor.sizes[dim]);
        else if (std::ranges::any_of(own, [&](int64_t m) { return mesh_dims.contains(m); }))
          return false;
      }
    return lengths.size() == 1;
  }

  /// True if the operand already has these placements along `dim`.
  static bool is_sharded_so(const PlacedTensor& tensor, int64_t dim) {
    for (size_t m = 0; m < tensor.placements.size(); ++m)
      if (tensor.spec->placements()[m].places_boxes() ||
          tensor.spec->placements()[m].is_shard(dim) != tensor.placements[m].is_shard(dim))
        return false;
    return true;
  }

  const OpCall& call_;
  MeshPtr mesh_;
  std::vector<AcceptableSharding> shardings_;
  std::vector<PlacedTensor> tensors_;
};

}  // namespace

std::optional<Propagation> propagate_acceptable(const OpCall& call, c10::ArrayRef<AcceptableSharding> shardings) {
  return ShardingChoice(call, shardings).run();
}

}  // namespace shardwise
