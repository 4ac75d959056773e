#include "runtime/execute.h"

#include "runtime/below.h"
#include "runtime/collectives.h"
#include "runtime/plan.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/hash.h>
#include <fmt/format.h>

#include <limits>
#include <unordered_map>

namespace shardwise {
namespace {

/// The part of `piece` (which is the box `held`) inside `box`.
at::Tensor cut(at::Tensor piece, const Box& held, const Box& box) {
  for (size_t dim = 0; dim < held.sizes.size(); ++dim)
    if (box.sizes[dim] != held.sizes[dim])
      piece = piece.narrow(static_cast<int64_t>(dim), box.offsets[dim] - held.offsets[dim], box.sizes[dim]);
  return piece;
}

void combine(const at::Tensor& into, const at::Tensor& values, Reduce reduce) {
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kAvg:
      into.add_(values);
      return;
    case Reduce::kProduct:
      into.mul_(values);
      return;
    case Reduce::kMax:
      into.copy_(at::maximum(into, values));
      return;
    case Reduce::kMin:
      into.copy_(at::minimum(into, values));
      return;
  }
}

/// Runs one exchange: packs a flat buffer per peer, sends all of them in one all-to-all-v and unpacks.
class Exchanging {
 public:
  Exchanging(const Exchange& exchange, const Spec& source, const Shards& shards, const Spec& middle)
      : exchange_(exchange), source_(source), shards_(shards), middle_(middle), rank_(source.mesh()->rank()) {}

  Shards run() {
    const c10::Device device = shards_.empty() ? source_.mesh()->device() : shards_[0].device();
    for (const Box& box : middle_.boxes()) result_.push_back(empty_piece(middle_, box.sizes, device));
    if (!exchange_.is_local) communicate(device);
    for (const Transfer& receive : exchange_.receives) unpack(receive);
    if (exchange_.n_averaged > 1)
      for (const at::Tensor& piece : result_) piece.div_(exchange_.n_averaged);
    return std::move(result_);
  }

 private:
  void communicate(c10::Device device) {
    const Group& group =
        *(exchange_.mesh_dim < 0 ? source_.mesh()->group() : source_.mesh()->group(exchange_.mesh_dim));
    std::vector<int64_t> send_splits(group.size()), receive_splits(group.size());
    for (const Transfer& send : exchange_.sends)
      if (send.rank != rank_) send_splits[group.index_of(send.rank)] += send.box.numel();
    for (const Transfer& receive : exchange_.receives)
      if (receive.rank != rank_) receive_splits[group.index_of(receive.rank)] += receive.box.numel();

    at::Tensor outgoing = buffer(send_splits, device);
    incoming_ = buffer(receive_splits, device);
    auto next = starts(send_splits);
    for (const Transfer& send : exchange_.sends) {
      if (send.rank == rank_) continue;
      int64_t& at = next[group.index_of(send.rank)];
      outgoing.narrow(0, at, send.box.numel()).view(send.box.sizes).copy_(source_part(send.piece, send.box));
      at += send.box.numel();
    }
    all_to_all(group, incoming_, outgoing, receive_splits, send_splits);
    auto arrived = starts(receive_splits);
    for (int64_t i = 0; i < group.size(); ++i) arrived_[group.ranks[i]] = arrived[i];
  }

  at::Tensor buffer(const std::vector<int64_t>& splits, c10::Device device) const {
    int64_t total = 0;
    for (int64_t split : splits) total += split;
    return at::empty({total}, at::TensorOptions().dtype(source_.dtype()).device(device));
  }

  static std::vector<int64_t> starts(const std::vector<int64_t>& splits) {
    std::vector<int64_t> result;
    int64_t next = 0;
    for (int64_t split : splits) {
      result.push_back(next);
      next += split;
    }
    return result;
  }

  at::Tensor source_part(int64_t piece, const Box& box) const {
    return cut(shards_[piece], source_.boxes()[piece], box);
  }

  /// Receives come ordered by contributor, and within one sender as it packed them.
  void unpack(const Transfer& receive) {
    const at::Tensor into = cut(result_[receive.piece], middle_.boxes()[receive.piece], receive.box);
    at::Tensor values;
    if (receive.rank == rank_) {
      values = own_part(receive.box);
    } else {
      int64_t& at = arrived_.at(receive.rank);
      values = incoming_.narrow(0, at, receive.box.numel()).view(receive.box.sizes);
      at += receive.box.numel();
    }
    if (receive.combines)
      combine(into, values, exchange_.reduce);
    else
      into.copy_(values);
  }

  at::Tensor own_part(const Box& box) const {
    for (size_t piece = 0; piece < shards_.size(); ++piece)
      if (source_.boxes()[piece].contains(box)) return source_part(static_cast<int64_t>(piece), box);
    TORCH_INTERNAL_ASSERT(false, "[redistribute] this rank does not hold ", to_string(box));
  }

  const Exchange& exchange_;
  const Spec& source_;
  const Shards& shards_;
  const Spec& middle_;
  int64_t rank_;
  Shards result_;
  at::Tensor incoming_;
  std::unordered_map<int64_t, int64_t> arrived_;  // by sender: where its next box begins
};

void reduce_all(const std::vector<AllReduce>& reduces, const DeviceMesh& mesh, Shards& shards) {
  for (const AllReduce& step : reduces)
    for (at::Tensor& piece : shards) {
      if (!piece.is_contiguous()) piece = piece.contiguous();
      all_reduce(*mesh.group(step.mesh_dim), piece, step.reduce);
    }
}

/// Replicas that become Partial: the first coordinate keeps the value, the others hold the reduction's identity.
void make_partial(const Plan& plan, const DeviceMesh& mesh, Shards& shards, c10::ScalarType dtype) {
  for (const auto& [mesh_dim, reduce] : plan.to_partial) {
    const bool keeps = reduce != Reduce::kSum && reduce != Reduce::kProduct;
    if (keeps || (*mesh.coord())[mesh_dim] == 0) continue;
    for (at::Tensor& piece : shards) piece.fill_(identity_of(reduce, dtype));
  }
}

/// Plans of this thread by source and destination, which the entries keep alive. Bounded: emptied when full.
std::shared_ptr<const Plan> planned(const SpecPtr& source, const SpecPtr& destination) {
  struct Entry {
    SpecPtr source, destination;
    std::shared_ptr<const Plan> plan;
  };
  using Key = std::pair<Spec*, Spec*>;
  struct Hash {
    size_t operator()(const Key& key) const { return c10::get_hash(key.first, key.second); }
  };
  constexpr size_t kMaxPlans = 1024;
  thread_local std::unordered_map<Key, Entry, Hash> plans;
  if (plans.size() >= kMaxPlans) plans.clear();
  auto [found, is_new] = plans.try_emplace({source.get(), destination.get()});
  if (is_new) {
    auto made = std::make_shared<const Plan>(plan(source->layout(), destination->layout(), source->mesh()->rank()));
    found->second = {source, destination, std::move(made)};
  }
  return found->second.plan;
}

}  // namespace

at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device) {
  return at::empty_strided(sizes, dense_strides(sizes, spec.strides()),
                           at::TensorOptions().dtype(spec.dtype()).device(device));
}

c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype) {
  if (reduce == Reduce::kProduct) return 1;
  if (reduce == Reduce::kSum || reduce == Reduce::kAvg) return 0;
  const bool is_max = reduce == Reduce::kMax;
  if (c10::isFloatingType(dtype))
    return is_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (dtype == c10::ScalarType::Bool) return !is_max;
  return AT_DISPATCH_V2(
      dtype, "identity_of", AT_WRAP([&] {
        return c10::Scalar(is_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max());
      }),
      AT_EXPAND(AT_INTEGRAL_TYPES));
}

Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination) {
  if (source == destination) return shards;
  TORCH_CHECK_VALUE(source->sizes() == destination->sizes() && source->dtype() == destination->dtype(),
                    fmt::format("[redistribute] {} cannot become {}: sizes and dtype must stay.", to_string(*source),
                                to_string(*destination)));
  TORCH_CHECK_VALUE(
      source->mesh()->grid() == destination->mesh()->grid(),
      fmt::format(
          "[redistribute] cannot move from mesh {} to mesh {}: they arrange ranks differently. Use the same mesh.",
          to_string(*source->mesh()), to_string(*destination->mesh())));
  if (!source->is_member()) return shards;

  BelowGuard guard;
  const auto held = planned(source, destination);
  const Plan& plan = *held;
  Shards pieces = shards;
  const bool writes = !plan.reduces_after.empty() || !plan.to_partial.empty();
  if (!plan.reduces_before.empty() || (writes && !plan.exchanges))
    for (at::Tensor& piece : pieces) piece = piece.clone();
  reduce_all(plan.reduces_before, *source->mesh(), pieces);
  if (plan.exchanges) {
    auto start = plan.reduces_before.empty() ? source : source->with_placements([&] {
      auto placements = source->placements().vec();
      for (const AllReduce& step : plan.reduces_before) placements[step.mesh_dim] = Placement::replicate();
      return placements;
    }());
    auto middle = source->with_placements(plan.middle.placements().vec());
    pieces = Exchanging(plan.exchange, *start, pieces, *middle).run();
  }
  reduce_all(plan.reduces_after, *source->mesh(), pieces);
  make_partial(plan, *source->mesh(), pieces, source->dtype());
  return pieces;
}

}  // namespace shardwise
