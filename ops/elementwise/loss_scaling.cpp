// ops/elementwise/loss_scaling.cpp: the operator that torch.amp.GradScaler calls on gradients. It multiplies them by the inverse scale and reports to
// all ranks whether one of them was infinite or NaN.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

constexpr const char* kOp = "aten::_amp_foreach_non_finite_check_and_unscale_";

double largest_number(at::ScalarType dtype) {
  double largest = 0;
  AT_DISPATCH_V2(dtype, kOp, AT_WRAP([&] { largest = static_cast<double>(std::numeric_limits<scalar_t>::max()); }),
                 AT_EXPAND(AT_FLOATING_TYPES), at::kHalf, at::kBFloat16);
  return largest;
}

/// The gradients of one call, and what this rank sees of them.
class Gradients {
 public:
  explicit Gradients(at::TensorList grads) : grads_(grads) {
    for (size_t i = 0; i < grads.size(); ++i) {
      SW_CHECK(at::isFloatingType(grads[i].scalar_type()),
               "[{}] gradient {} is of dtype {}, which is not floating point.", kOp, i,
               c10::toString(grads[i].scalar_type()));
      if (const auto* impl = maybe_dtensor(grads[i]))
        add(i, *impl);
      else
        add_plain(grads[i]);
    }
  }

  /// Multiplies this rank's gradients by `inv_scale`. Returns 1 if an element was not finite before, else 0.
  at::Tensor unscale(const at::Tensor& inv_scale) const {
    at::Tensor found = at::zeros(inv_scale.sizes(), inv_scale.options());
    std::vector<MemoryWrite> writes;
    for (const at::Tensor& grad : grads_)
      if (const auto* impl = maybe_dtensor(grad)) writes.push_back(impl->begin_write());
    if (!pieces_.empty()) at::_amp_foreach_non_finite_check_and_unscale_(pieces_, found, inv_scale);
    for (const at::Tensor& grad : grads_)
      if (!grad.is_inference()) grad.unsafeGetTensorImpl()->bump_version();
    return found.squeeze();
  }

  /// The largest magnitude among the terms of this rank's Partial gradients, as a fraction of the largest number of their dtype.
  at::Tensor reach(const at::Tensor& like) const {
    at::Tensor result = at::zeros({}, like.options());
    for (const at::Tensor& grad : partials_)
      for (const at::Tensor& term : maybe_dtensor(grad)->shards())
        if (term.numel() > 0)
          result = at::maximum(
              result,
              at::max(at::abs(term)).to(at::kDouble).div(largest_number(term.scalar_type())).to(result.dtype()));
    return result;
  }

  /// True if ranks may hold different values.
  bool differ() const { return differ_; }
  bool have_partials() const { return !partials_.empty(); }
  int64_t most_terms() const { return most_terms_; }

  /// Returns 1 if a sum of Partial gradients was not finite on this rank before unscaling, although its terms were, else 0. Collective.
  at::Tensor overflows(const at::Tensor& inv_scale) const {
    at::Tensor found = at::zeros({}, inv_scale.options());
    for (const at::Tensor& grad : partials_) {
      const at::Tensor whole = reduced(grad);
      for (const at::Tensor& sum : maybe_dtensor(whole)->shards()) {
        const at::Tensor scaled = sum.to(at::kDouble).div(inv_scale.to(at::kDouble)).to(sum.scalar_type());
        if (!at::isfinite(scaled).all().item<bool>()) found.fill_(1);
      }
    }
    return found;
  }

  /// The group of all ranks that hold a gradient: the ranks of a mesh that contains all other meshes, if there is one and no plain gradient needs
  /// more, else the whole world. Null on other ranks.
  GroupPtr everyone() const {
    const auto world = meshes_[0]->world();
    for (const MeshPtr& mesh : meshes_) {
      const bool is_enough = mesh->size() == world->size() || !any_plain_;
      if (is_enough &&
          std::ranges::all_of(meshes_, [&](const MeshPtr& other) { return has_all_ranks_of(*mesh, *other); }))
        return mesh->group();
    }
    return world->everyone();
  }

 private:
  void add_plain(const at::Tensor& grad) {
    any_plain_ = true;
    pieces_.push_back(grad);
  }

  void add(size_t i, DTensorImpl const& impl) {
    const Spec& spec = *impl.spec();
    SW_CHECK_VALUE(!impl.view_link(),
                   "[{}] gradient {} is a view whose values were moved from other ranks, and cannot be written to in a "
                   "list. Give a clone() of it.",
                   kOp, i);
    SW_CHECK_VALUE(are_linear(spec.placements()),
                   "[{}] gradient {} is laid out as {}, which cannot be scaled term by term. Redistribute it to Shard "
                   "or Replicate first.",
                   kOp, i, to_string(spec.placements()));
    if (std::ranges::find(meshes_, spec.mesh()) == meshes_.end()) meshes_.push_back(spec.mesh());
    differ_ |= !spec.layout().is_replicated();
    if (spec.layout().has_terms()) {
      partials_.push_back(grads_[i]);
      most_terms_ = std::max(most_terms_, spec.mesh()->size());
    }
    for (const at::Tensor& piece : impl.shards())
      if (piece.numel() > 0) pieces_.push_back(piece);
  }

  at::TensorList grads_;
  std::vector<at::Tensor> pieces_;
  std::vector<at::Tensor> partials_;
  std::vector<MeshPtr> meshes_;
  bool differ_ = false;
  bool any_plain_ = false;
  int64_t most_terms_ = 0;
};

/// Sets found_inf to 1 on all ranks that hold a gradient if a gradient on any rank is not finite.
///
/// The terms of a Partial gradient are checked without summing them: a sum of finite terms is finite unless they come near the largest number of
/// their dtype. Only then is the sum computed.
/// Cost: an all-reduce of two numbers, none if all gradients are replicas; in that rare case a reduction of each Partial gradient.
void check_and_unscale(at::TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  SW_CHECK_VALUE(!is_dtensor(found_inf) && !is_dtensor(inv_scale),
                 "[{}] found_inf and inv_scale must be plain tensors, as GradScaler makes them. Give to_local() of a "
                 "replicated DTensor.",
                 kOp);
  SW_CHECK(found_inf.numel() == 1 && inv_scale.numel() == 1,
           "[{}] found_inf and inv_scale must have one element each, not {} and {}.", kOp, found_inf.numel(),
           inv_scale.numel());
  const BelowAutograd guard;
  const Gradients gradients(grads);
  const at::Tensor reach = gradients.reach(inv_scale);
  at::Tensor found = gradients.unscale(inv_scale);
  if (const GroupPtr everyone = gradients.differ() ? gradients.everyone() : nullptr) {
    const CommScope scope(kOp, CommScope::Cause::kProgram);  // two numbers, independent of the layouts
    const at::Tensor seen = at::stack({found, reach});
    all_reduce(*everyone, seen, Reduce::kMax);
    found = seen[0];
    constexpr double kNearlyOne = 0.99;
    const bool is_near = seen[1].item<double>() * static_cast<double>(gradients.most_terms()) > kNearlyOne;
    if (gradients.have_partials() && is_near && found.item<double>() == 0) {
      found = gradients.overflows(inv_scale);
      all_reduce(*everyone, found.unsqueeze(0), Reduce::kMax);
    }
  }
  found_inf.copy_(at::maximum(found_inf, found.to(found_inf.device())));
}

}  // namespace

void register_loss_scaling(RuleTable& /*table*/) {
  aten_kernels().impl("_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale);
}

}  // namespace shardwise
