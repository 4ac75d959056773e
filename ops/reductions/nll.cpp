// ops/reductions/nll.cpp: the negative log likelihood of classes, and with log_softmax the cross entropy.
//
// Log probabilities never move. If samples are sharded, each rank computes its own terms. If classes are sharded, each rank picks the targets among
// its own classes (as vocabulary-parallel cross entropy does: Megatron-LM, 2019), and the loss is the sum.
#include "ops/families.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/maybe_tensor.h"
#include "ops/support/own_operator.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_scope.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

#include <cmath>
#include <tuple>

namespace shardwise {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

/// Classes are dim 1, or dim 0 of a single sample.
int64_t class_dim(int64_t n_dims) { return n_dims > 1 ? 1 : 0; }

/// The targets among the classes of one shard.
struct Window {
  at::Tensor index;    // of the class within the shard, with a class dim of extent 1; 0 if another rank has the class
  at::Tensor is_here;  // false also for ignored targets
  at::Tensor weights;  // weights of the targets' classes

  Window(const at::Tensor& input, const at::Tensor& target, const MaybeTensor& weight, int64_t ignored, int64_t first) {
    const int64_t dim = class_dim(input.dim()), n_classes = input.sym_size(dim).expect_int();
    const at::Tensor place = target.to(at::kLong).unsqueeze(dim) - first;
    is_here = place.ge(0).logical_and_(place.lt(n_classes)).logical_and_(place.ne(ignored - first));
    index = place.masked_fill(is_here.logical_not(), 0);
    weights = is_given(weight) ? weight->index_select(0, index.reshape(-1)).view_symint(index.sym_sizes())
                               : at::ones({}, input.options());
  }
};

/// Per target: the weighted loss and the weight; 0 if another rank has the class.
Pair pick(const at::Tensor& input, const at::Tensor& target, const MaybeTensor& weight, int64_t ignored,
          int64_t first) {
  const int64_t dim = class_dim(input.dim());
  if (input.sym_numel() == 0) {
    const auto zeros = [&] { return at::zeros_symint(target.sym_sizes(), input.options()); };
    return {zeros(), zeros()};
  }
  const Window window(input, target, weight, ignored, first);
  const at::Tensor zero = at::zeros({}, input.options());
  const at::Tensor losses = input.gather(dim, window.index).mul(window.weights).neg_();
  return {at::where(window.is_here, losses, zero).squeeze(dim),
          at::where(window.is_here, window.weights, zero).squeeze(dim)};
}

/// The gradient of `input`, from the gradient of the losses; or that of the logits whose log probabilities are `input`: each sample's gradients then
/// add up to 0, so the ranks need no sum over the classes. Pre: logits have no weights.
at::Tensor spread(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target, const MaybeTensor& weight,
                  int64_t ignored, int64_t first, bool of_logits) {
  const int64_t dim = class_dim(input.dim());
  if (input.sym_numel() == 0) return at::zeros_like(input);
  const Window window(input, target, weight, ignored, first);
  const at::Tensor of_each = grad.unsqueeze(dim);
  const at::Tensor grads = of_each.mul(window.weights).neg_().masked_fill_(window.is_here.logical_not(), 0);
  if (!of_logits) return at::zeros_like(input).scatter_(dim, window.index, grads);
  at::Tensor result = widened(input).exp().mul_(of_each.masked_fill(target.unsqueeze(dim).eq(ignored), 0));
  return result.scatter_add_(dim, window.index, grads.to(result.scalar_type())).to(input.scalar_type());
}

Pair pick_shape(const at::Tensor& input, const at::Tensor& target, const MaybeTensor& weight, int64_t ignored,
                int64_t /*first*/) {
  if (input.dim() <= 2 && !has_symbols(input))  // for its errors
    at::nll_loss_forward(input, target, weight, at::Reduction::None, ignored);
  const auto like_target = [&] { return input.new_empty_symint(target.sym_sizes()); };
  return {like_target(), like_target()};  // tracers tell results apart by object
}

at::Tensor spread_shape(const at::Tensor&, const at::Tensor& input, const at::Tensor&, const MaybeTensor&, int64_t,
                        int64_t, bool) {
  return at::empty_like(input);
}

void check_fits(const std::string& name, c10::IntArrayRef sizes, size_t n_dims, c10::IntArrayRef input) {
  SW_CHECK(sizes.size() == n_dims,
           "[aten::nll_loss] {} of shape [{}] does not fit input of shape [{}]. Give it the shape of input without "
           "the dim of classes.",
           name, fmt::join(sizes, ", "), fmt::join(input, ", "));
}

/// The operands' axes by the arguments' names: "nc…,n…,c".
struct LossAxes {
  Axes input, target;

  LossAxes(const OpCall& call, Signature& signature, const char* input_name) {
    const auto& sizes = call.operands[call.operand_at(input_name)].sizes;
    target = input = signature.add_factors(sizes);
    const int64_t dim = class_dim(static_cast<int64_t>(input.size()));
    target.erase(target.begin() + dim);
    for (const Operand& operand : call.operands) {
      const std::string& name = call.name_of(operand);
      const bool is_number = name == "grad_output" || name == "total_weight";
      signature.inputs.push_back(name == input_name ? input
                                 : name == "weight" ? Axes{input[dim]}
                                 : is_number        ? Axes()
                                                    : target);
      check_fits(name, operand.sizes, signature.inputs.back().size(), sizes);
    }
  }
};

void describe(const OpCall& call, Signature& signature) {
  const LossAxes axes(call, signature, "input");
  if (call.op.n_returns() == 2)
    signature.outputs = {axes.target, axes.target};
  else
    signature.outputs = {axes.input};
}

/// The sum of the losses of whole rows of classes, and the sum of their weights; or the gradient from that of the sum.
void describe_sum(const OpCall& call, Signature& signature) {
  const LossAxes axes(call, signature, "self");
  signature.factors[axes.input[class_dim(static_cast<int64_t>(axes.input.size()))].factor].is_whole = true;
  if (call.op.n_returns() == 2)
    signature.outputs = {Axes(), Axes()};
  else
    signature.outputs = {axes.input};
}

void localize_classes(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Box& input = local.inputs[local.call.operand_at("input")];
  if (!input.offsets.empty())
    args[local.call.op.arg_index("first_class")] = input.offsets[class_dim(static_cast<int64_t>(input.offsets.size()))];
}

at::Tensor along_classes(const at::Tensor& weight, int64_t n_dims) {
  Dims sizes(n_dims, 1);
  sizes[class_dim(n_dims)] = weight.numel();
  return weight.view(sizes);
}

Pair picked(const at::Tensor& input, const at::Tensor& target, const MaybeTensor& weight, int64_t ignored) {
  static const auto op = operator_of<decltype(pick)>("shardwise::nll_pick");
  return op.call(input, target, weight, ignored, 0);
}

at::Tensor spread_over(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                       const MaybeTensor& weight, int64_t ignored, bool of_logits = false) {
  static const auto op = operator_of<decltype(spread)>("shardwise::nll_spread");
  return op.call(grad, input, target, weight, ignored, 0, of_logits);
}

/// `target` as checked_range() returns it. Throws c10::IndexError on all ranks alike if a target is no class.
at::Tensor checked(const at::Tensor& target, int64_t n_classes, int64_t ignored) {
  const CommScope scope("aten::nll_loss");
  const auto check = [=](int64_t lowest, int64_t highest) {
    TORCH_CHECK_INDEX(lowest >= 0 && highest < n_classes, "Target ", lowest < 0 ? lowest : highest,
                      " is out of bounds.");
  };
  const auto words = [&] { return fmt::format("targets in [0, {}), ignoring {}", n_classes, ignored); };
  return checked_range(target, words, check, ignored);
}

/// Targets for `input`: without terms, and whole where classes are sharded, so that all ranks that share a sample check its target.
at::Tensor moved_for(const at::Tensor& input, const at::Tensor& target) {
  if (!is_dtensor(target) || !is_dtensor(input) || spec_of(target)->mesh() != spec_of(input)->mesh()) return target;
  Placements placements = without_partial(spec_of(target)->placements());
  for (const int64_t m : mesh_dims_splitting(spec_of(input)->placements(), class_dim(input.dim())))
    placements[m] = Placement::replicate();
  return placements == spec_of(target)->placements() ? target : redistribute(target, std::move(placements));
}

bool is_replica(const at::Tensor& tensor) { return is_dtensor(tensor) && spec_of(tensor)->layout().is_replicated(); }

/// The sum of the weights of all targets; `sum`: that of each rank's. It is no Partial, because the backward reads it, too. Replicated targets give
/// it without a message.
at::Tensor sum_of_weights(const at::Tensor& sum, const at::Tensor& target, const MaybeTensor& weight, int64_t ignored) {
  if (!spec_of(sum)->layout().has_terms()) return sum;
  if (!is_replica(target) || (is_given(weight) && !is_replica(*weight))) return reduced(sum);
  const at::Tensor counts = target.ne(ignored);
  if (!is_given(weight)) return counts.sum(sum.scalar_type());
  const at::Tensor classes = target.to(at::kLong).mul(counts).reshape(-1);
  return weight->index_select(0, classes).mul(counts.reshape(-1)).sum(sum.scalar_type());
}

/// True if a mean of losses does without checked(): told_sum_of_weights() tells all ranks of a bad target.
bool is_told_by_divisor(const at::Tensor& target, int64_t reduction) {
  return reduction == at::Reduction::Mean && is_dtensor(target) && !is_replica(target) && !is_traced_index(target) &&
         spec_of(target)->mesh()->size() > 1;
}

/// sum_of_weights(), which the ranks exchange anyway; this rank's term is NaN if it has a bad target. Throws: c10::IndexError on all ranks alike.
at::Tensor told_sum_of_weights(const at::Tensor& sum, const at::Tensor& target, const MaybeTensor& weight,
                               int64_t n_classes, int64_t ignored, bool is_bad) {
  if (is_bad)
    for (const at::Tensor& term : maybe_dtensor(sum)->shards()) term.fill_(NAN);
  const at::Tensor result = sum_of_weights(sum, target, weight, ignored);
  bool is_told = true;
  for (const int64_t m : mesh_dims_that_differ(spec_of(target)->placements()))
    is_told &= spec_of(sum)->placements()[m].terms().has_value();
  for (const at::Tensor& piece : maybe_dtensor(result)->shards())
    is_told &= piece.is_meta() || !std::isnan(piece.item<double>());
  if (!is_told) checked(target, n_classes, ignored);
  return result;
}

void check_weight(const at::Tensor& weight, int64_t n_classes) {
  TORCH_CHECK(weight.dim() == 1 && weight.numel() == n_classes, "weight tensor should be defined either for all ",
              n_classes, " classes or no classes but got weight tensor of shape: ", weight.sizes());
}

/// Throws: torch's errors. torch's kernels throw them only if there are elements.
void check_operands(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight, int64_t n_classes) {
  TORCH_CHECK(target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
              "expected target dtype to be Long or Byte, but got ", target.scalar_type());
  SW_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()),
                           "[aten::nll_loss] is not implemented for {}. Convert the input to a floating dtype.",
                           c10::toString(self.scalar_type()));
  if (!is_given(weight)) return;
  check_weight(*weight, n_classes);
  TORCH_CHECK(weight->scalar_type() == self.scalar_type(), "expected scalar type ", self.scalar_type(), " but found ",
              weight->scalar_type());
}

/// True if torch's operator may sum the losses of each rank: classes are whole, and sums keep their digits (in half precision a count stops at
/// 2,048).
bool are_summed(const at::Tensor& self, int64_t reduction) {
  return is_dtensor(self) && reduction != at::Reduction::None && self.dim() > 1 && self.numel() > 0 &&
         !at::isReducedFloatingType(self.scalar_type()) && !is_sharded_along(self, class_dim(self.dim()));
}

template <bool kIsPlane>
Pair forward(const at::Tensor& self, const at::Tensor& targets, const MaybeTensor& weight, int64_t reduction,
             int64_t ignored) {
  static const ByRule summed(kIsPlane ? "aten::nll_loss2d_forward" : "aten::nll_loss_forward");
  at::Tensor target = moved_for(self, targets);
  const int64_t n_classes = self.dim() > 0 ? self.size(class_dim(self.dim())) : 0;
  check_operands(self, target, weight, n_classes);
  const bool is_sum = are_summed(self, reduction), is_told = is_told_by_divisor(target, reduction);
  if (is_sum) check_fits("target", target.sizes(), self.dim() - 1, self.sizes());
  const auto own = is_told ? range_of(target, ignored, /*of_all_ranks=*/false) : std::nullopt;
  const bool is_bad = own && (own->first < 0 || own->second >= n_classes);
  if (!is_told && !(is_sum && is_alone(self)))  // there torch's operator checks the targets
    target = checked(target, n_classes, ignored);
  const at::Tensor classes = is_bad ? target.clamp(0, n_classes - 1) : target;
  const auto divisor_of = [&](const at::Tensor& sum) {
    return is_told ? told_sum_of_weights(sum, target, weight, n_classes, ignored, is_bad)
                   : sum_of_weights(sum, target, weight, ignored);
  };
  if (is_sum) {
    const auto own_reduction = is_alone(self) ? reduction : int64_t{at::Reduction::Sum};
    const auto [total, weights] = summed.tensors<2>(self, classes, weight, own_reduction, ignored);
    if (reduction == own_reduction) return {total, weights};
    const at::Tensor divisor = divisor_of(weights);
    return {total / divisor, divisor};
  }
  const auto [losses, weights] = picked(self, classes, weight, ignored);
  if (reduction == at::Reduction::None) return {losses, losses.new_zeros({})};
  const at::ScalarType dtype = self.scalar_type();
  const auto wide = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;  // in half precision a count stops at 2,048
  const at::Tensor total = at::sum(losses, wide), sum = at::sum(weights, wide);
  if (reduction == at::Reduction::Sum) return {total.to(dtype), sum.to(dtype)};
  const at::Tensor divisor = divisor_of(sum);
  return {(total / divisor).to(dtype), divisor.to(dtype)};
}

template <bool kIsPlane>
at::Tensor backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                    int64_t reduction, int64_t ignored, const at::Tensor& total_weight) {
  static const ByRule of_sum(kIsPlane ? "aten::nll_loss2d_backward" : "aten::nll_loss_backward");
  if (reduction == at::Reduction::None) return spread_over(grad, self, target, weight, ignored);
  const bool is_sum = are_summed(self, reduction);
  if (is_sum && is_alone(self)) return of_sum(grad, self, target, weight, reduction, ignored, total_weight);
  const at::Tensor of_each = reduction == at::Reduction::Mean ? grad / total_weight : grad;
  if (is_sum) {
    // The kernel does not read the total weight of a sum, which is Partial: it would be reduced for nothing.
    const at::Tensor& total = reduction == at::Reduction::Mean ? total_weight : of_each;
    return of_sum(of_each, self, target, weight, int64_t{at::Reduction::Sum}, ignored, total);
  }
  return spread_over(of_each.expand_symint(target.sym_sizes()), self, target, weight, ignored);
}

/// Targets are probabilities per class.
at::Tensor soft_cross_entropy(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                              int64_t reduction, double smoothing) {
  TORCH_CHECK(at::isFloatingType(target.scalar_type()),
              "Expected floating point type for target with class probabilities, got ", target.scalar_type());
  const int64_t dim = class_dim(self.dim()), n_classes = self.size(dim);
  const at::Tensor wanted =
      smoothing > 0 ? target * (1 - smoothing) + smoothing / static_cast<double>(n_classes) : target;
  at::Tensor terms = at::log_softmax(self, dim) * wanted;
  if (is_given(weight)) {
    check_weight(*weight, n_classes);
    terms = terms * along_classes(*weight, self.dim());
  }
  if (reduction == at::Reduction::None) return -terms.sum(dim);
  const double n_samples = static_cast<double>(self.numel()) / static_cast<double>(n_classes);
  return reduction == at::Reduction::Mean ? -terms.sum() / n_samples : -terms.sum();
}

/// The term that label smoothing adds: the mean over all classes.
at::Tensor smooth_part(const at::Tensor& log_probs, const at::Tensor& target, const MaybeTensor& weight,
                       int64_t reduction, int64_t ignored) {
  const int64_t dim = class_dim(log_probs.dim());
  const at::Tensor weighted = is_given(weight) ? log_probs * along_classes(*weight, log_probs.dim()) : log_probs;
  const at::Tensor terms = (-weighted.sum(dim)).masked_fill(target.eq(ignored), 0);
  if (reduction == at::Reduction::None) return terms;
  if (reduction == at::Reduction::Sum) return terms.sum();
  const at::Tensor weights = std::get<1>(picked(log_probs.detach(), target, weight, ignored));
  return terms.sum() / sum_of_weights(weights.sum(), target, weight, ignored);
}

/// The loss of `log_probs`, log_softmax() of the logits `self`, with one derivative for both: that of log_softmax() alone would send the sums of the
/// samples' gradients.
at::Tensor loss_of_logits(const at::Tensor& self, const at::Tensor& log_probs, const at::Tensor& target,
                          int64_t reduction, int64_t ignored) {
  const auto [loss, n_targets] =
      below_derivatives([&] { return at::nll_loss_forward(log_probs, target, {}, reduction, ignored); });
  const auto derivative = [=](const at::Tensor& grad, const torch::autograd::variable_list& saved) {
    if (c10::GradMode::is_enabled())
      return at::_log_softmax_backward_data(
          at::nll_loss_backward(grad, saved[0], saved[1], {}, reduction, ignored, saved[2]), saved[0], 1,
          saved[0].scalar_type());
    const at::Tensor of_each = reduction == at::Reduction::Mean ? grad / saved[2] : grad;
    return spread_over(of_each.expand_symint(saved[1].sym_sizes()), saved[0], saved[1], {}, ignored,
                       /*of_logits=*/true);
  };
  return with_derivative(self, loss, {log_probs, target, n_targets}, "CrossEntropyBackward", derivative);
}

/// The same composition as torch's, without selections whose sizes depend on values. `kIsAboveAutograd`: derivatives are recorded here.
template <bool kIsAboveAutograd>
at::Tensor cross_entropy(const at::Tensor& self, const at::Tensor& given, const MaybeTensor& weight, int64_t reduction,
                         int64_t ignored, double smoothing) {
  TORCH_CHECK(smoothing >= 0 && smoothing <= 1, "label_smoothing must be between 0.0 and 1.0. Got: ", smoothing);
  if (sizes_of(self) == sizes_of(given)) {
    TORCH_CHECK(ignored < 0, "ignore_index is not supported for floating point target");
    return soft_cross_entropy(self, given, weight, reduction, smoothing);
  }
  const int64_t dim = class_dim(self.dim());
  const at::Tensor log_probs = at::log_softmax(self, dim), target = moved_for(self, given);
  if (kIsAboveAutograd && smoothing == 0 && !is_given(weight) && self.dim() == 2 && is_sharded_along(self, dim) &&
      self.requires_grad() && c10::GradMode::is_enabled() && !has_tangent(self))
    return loss_of_logits(self, log_probs, target, reduction, ignored);
  const at::Tensor loss = at::nll_loss_nd(log_probs, target, weight, reduction, ignored);
  if (smoothing == 0) return loss;
  const double share = smoothing / static_cast<double>(fixed_size(self, dim));
  return loss * (1 - smoothing) + smooth_part(log_probs, target, weight, reduction, ignored) * share;
}

}  // namespace

void register_nll(RuleTable& table) {
  define_operator(
      "nll_pick(Tensor input, Tensor target, Tensor? weight, int ignore_index, int first_class) -> (Tensor losses, "
      "Tensor weights)",
      {.compute = &pick, .shape = &pick_shape, .traced = &pick});
  define_operator(
      "nll_spread(Tensor grad, Tensor input, Tensor target, Tensor? weight, int ignore_index, int first_class, bool "
      "of_logits) -> Tensor",
      {.compute = &spread, .shape = &spread_shape, .traced = &spread});
  table.add("shardwise::nll_pick", Rule("nc…,n…,c->n…,n… {c: sum}", describe).localized(localize_classes));
  table.add("shardwise::nll_spread", Rule("n…,nc…,n…,c->nc…", describe).localized(localize_classes).linear_in_first());
  for (const char* name : {"aten::nll_loss_forward", "aten::nll_loss2d_forward"})
    table.add(name, Rule("sum of nc…,n…,c->,", describe_sum).sampled());
  for (const char* name : {"aten::nll_loss_backward", "aten::nll_loss2d_backward"})
    table.add(name, Rule("gradient of a sum of nc…,n…,c", describe_sum).linear_in_first().sampled());
  table.keep_symbols({"shardwise::nll_pick", "shardwise::nll_spread", "aten::nll_loss_forward",
                      "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward"});
  aten_kernels().impl("nll_loss_forward", &forward<false>);
  aten_kernels().impl("nll_loss2d_forward", &forward<true>);
  aten_kernels().impl("nll_loss_backward", &backward<false>);
  aten_kernels().impl("nll_loss2d_backward", &backward<true>);
  aten_kernels().impl("cross_entropy_loss", &cross_entropy<false>);
  aten_autograd_kernels().impl("cross_entropy_loss", &cross_entropy<true>);
}

}  // namespace shardwise
