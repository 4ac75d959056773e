// ops/reductions/losses.cpp: losses computed element by element, or sample by sample, and then averaged or summed.
//
// Each rank computes its own terms. Their sum stays Partial; means and their gradients divide by the global count.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/tensor/registrations.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Whether a loss has a term per element or per sample.
enum class Terms : uint8_t { kElements, kSamples };

/// An operator and its rule, which holds for terms that are not combined.
class Loss : public c10::OperatorKernel {
 public:
  Loss(const std::string& name, Terms terms)
      : info_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "")),
        gathered_(info_.handle),
        terms_(terms) {
    info_.rule = RuleTable::global().find(name);
    reduction_ = info_.arg_index("reduction");
    self_ = info_.arg_index("self");
    static const Rule gathered = Rule::gathered();
    gathered_.rule = &gathered;
  }

 protected:
  c10::IValue& arg(torch::jit::Stack& stack, size_t i) const { return stack[stack.size() - info_.n_args() + i]; }

  /// A single sample has no batch dim to shard, so its classes are gathered. Returns true if the call had a single sample.
  bool answers_single_sample(torch::jit::Stack* stack) const {
    if (terms_ != Terms::kSamples || arg(*stack, self_).toTensor().dim() > 1) return false;
    dispatch(gathered_, stack);
    return true;
  }

  OpInfo info_, gathered_;
  Terms terms_;
  size_t reduction_, self_;
};

class Forward final : public Loss {
 public:
  using Loss::Loss;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (answers_single_sample(stack)) return;
    const int64_t reduction = std::exchange(arg(*stack, reduction_), c10::IValue(int64_t{at::Reduction::None})).toInt();
    dispatch(info_, stack);
    c10::IValue& terms = (*stack)[stack->size() - info_.n_returns()];
    if (reduction == at::Reduction::Mean) terms = at::mean(terms.toTensor());
    if (reduction == at::Reduction::Sum) terms = at::sum(terms.toTensor());
  }
};

class Backward final : public Loss {
 public:
  using Loss::Loss;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (answers_single_sample(stack)) return;
    const int64_t reduction = arg(*stack, reduction_).toInt();
    if (reduction != at::Reduction::None && !counts_all(*stack)) {  // the gradient of a sum of elements stays a number
      const auto terms = sizes_of_terms(arg(*stack, 1).toTensor().sym_sizes(), arg(*stack, 2).toTensor().sym_sizes());
      at::Tensor grad = arg(*stack, 0).toTensor();
      if (reduction == at::Reduction::Mean) grad = grad.div(c10::multiply_integers(terms));
      arg(*stack, 0) = terms_ == Terms::kElements ? grad : grad.expand_symint(terms);
      arg(*stack, reduction_) = int64_t{terms_ == Terms::kElements ? at::Reduction::Sum : at::Reduction::None};
    }
    dispatch(info_, stack);
  }

 private:
  /// Whether each rank has all elements, so that torch's kernel divides by the global count.
  bool counts_all(const torch::jit::Stack& stack) const {
    return terms_ == Terms::kElements &&
           std::ranges::none_of(torch::jit::last(stack, info_.n_args()), [](const auto& value) {
             const auto* impl = value.isTensor() ? maybe_dtensor(value.toTensor()) : nullptr;
             return impl && impl->spec()->mesh()->size() > 1 && !impl->spec()->layout().is_replicated();
           });
  }
  /// The sizes of the loss with reduction "none".
  c10::SymDimVector sizes_of_terms(c10::SymIntArrayRef self, c10::SymIntArrayRef target) const {
    if (terms_ == Terms::kElements) return at::infer_size_symdimvector(self, target);
    return self.empty() ? c10::SymDimVector() : c10::SymDimVector(self.begin(), self.end() - 1);
  }
};

void add_loss(RuleTable& table, const std::string& name, const Rule& rule, Terms terms = Terms::kElements) {
  table.add("aten::" + name, rule);
  aten_kernels().impl(name.c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Forward>("aten::" + name, terms)));
}

void add_gradient(RuleTable& table, const std::string& name, const Rule& rule, Terms terms = Terms::kElements) {
  table.add("aten::" + name, rule.linear_in_first());
  aten_kernels().impl(name.c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Backward>("aten::" + name, terms)));
}

/// Samples [n, c]; the classes of a sample are whole. `labels`: a target per class (a row of labels) or per sample.
enum class Labels : uint8_t { kPerSample, kPerClass };

Rule by_sample(Labels labels, bool is_gradient) {
  auto describe = [=](const OpCall& call, Signature& signature) {
    Axes all = signature.add_factors(call.operands[call.operand_at("self")].sizes);
    Axes sample = all, classes;
    if (!all.empty()) {
      signature.factors.back().is_whole = true;
      classes.push_back(all.back());
      sample.pop_back();
    }
    for (const Operand& operand : call.operands) {
      const std::string& name = call.name_of(operand);
      const bool is_per_sample = name == "grad_output" || (name == "target" && labels == Labels::kPerSample);
      Axes axes = name == "weight" ? classes : is_per_sample ? sample : all;
      axes.resize(operand.sizes.size());  // one sample may have a label of one dim
      signature.inputs.push_back(axes);
    }
    signature.outputs = {is_gradient ? all : sample, all};
    signature.outputs.resize(call.op.n_returns());
  };
  return Rule("by sample", describe).sampled();
}

/// torch's formula; in a traced program a composition, because torch has no backward for tracers. torch's composition for them mixes DTensors and
/// plain tensors.
at::Tensor multi_margin_loss(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& target,
                             const at::Scalar& p, const at::Scalar& margin, const std::optional<at::Tensor>& weight,
                             int64_t reduction) {
  const bool has_weight = weight && weight->defined();
  const bool is_refused = self.dim() != 2 || (has_weight && weight->sym_numel() != self.sym_size(1));  // by torch
  if (!is_tracing() || is_refused)
    return at::_ops::multi_margin_loss::redispatch(formula_keys(keys), self, target, p, margin, weight, reduction);
  const at::Tensor labels = target.unsqueeze(1);
  at::Tensor terms = self.sub(self.gather(1, labels)).add(margin).relu();
  if (p.toDouble() != 1) terms = terms.square();
  if (has_weight) terms = terms.mul(weight->index_select(0, target).unsqueeze(1));
  terms = terms.scatter(1, labels, 0).mean(1);
  return reduction == at::Reduction::None ? terms : reduction == at::Reduction::Sum ? terms.sum() : terms.mean();
}

at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets, c10::IntArrayRef input_lengths,
                    c10::IntArrayRef target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  const bool is_batch = log_probs.dim() == 3;
  at::Tensor terms = std::get<0>(at::_ctc_loss(is_batch ? log_probs : log_probs.unsqueeze(1), targets.to(at::kLong),
                                               input_lengths, target_lengths, blank, zero_infinity));
  if (zero_infinity) terms = terms.masked_fill(terms.eq(std::numeric_limits<double>::infinity()), 0);
  if (reduction == at::Reduction::Sum) return terms.sum();
  if (reduction == at::Reduction::None) return is_batch ? terms : terms.squeeze(0);
  const auto& mesh = spec_of(terms)->mesh();
  const at::Tensor lengths = at::tensor(target_lengths, at::kLong).clamp_min_(1).to(terms.options());
  return terms.div(replica_of(lengths, mesh)).mean();
}

at::Tensor ctc_loss_of_tensors(const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& input_lengths,
                               const at::Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return at::ctc_loss(log_probs, targets, integers_in(input_lengths), integers_in(target_lengths), blank, reduction,
                      zero_infinity);
}

}  // namespace

void register_losses(RuleTable& table) {
  for (const char* name : {"mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss"}) {
    add_loss(table, name, pointwise());
    add_gradient(table, name + std::string("_backward"), pointwise());
  }
  add_loss(table, "binary_cross_entropy_with_logits", pointwise());
  table.keep_symbols({"aten::mse_loss", "aten::mse_loss_backward", "aten::smooth_l1_loss",
                      "aten::smooth_l1_loss_backward", "aten::huber_loss", "aten::huber_loss_backward",
                      "aten::binary_cross_entropy", "aten::binary_cross_entropy_backward", "aten::soft_margin_loss",
                      "aten::soft_margin_loss_backward", "aten::binary_cross_entropy_with_logits",
                      "aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward"});
  add_loss(table, "multi_margin_loss", by_sample(Labels::kPerSample, false), Terms::kSamples);
  add_gradient(table, "multi_margin_loss_backward", by_sample(Labels::kPerSample, true), Terms::kSamples);
  add_loss(table, "multilabel_margin_loss_forward", by_sample(Labels::kPerClass, false), Terms::kSamples);
  add_gradient(table, "multilabel_margin_loss_backward", by_sample(Labels::kPerClass, true), Terms::kSamples);
  aten_autograd_kernels().impl("multi_margin_loss", &multi_margin_loss);
  add_composition("ctc_loss.IntList", &ctc_loss);
  add_composition("ctc_loss.Tensor", &ctc_loss_of_tensors);
}

}  // namespace shardwise
