// ops/products/attention_operators.cpp: torch's fused attention operators and their backwards, on distributed tensors. Their arguments are read by name.
#include "ops/families.h"
#include "ops/products/fused_attention.h"
#include "ops/support/kernels.h"
#include "runtime/dispatch/dispatch.h"

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;

/// A boxed call of one of the operators.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : info(op), stack_(stack), scope_(name()), span_(info.name) {}

  /// The schema's text, because records of communication and memory keep the pointer after the call.
  const char* name() const { return info.handle.schema().name().c_str(); }

  /// None if the operator has no such argument.
  c10::IValue value(std::string_view name) const {
    const auto at = info.handle.schema().argumentIndexWithName(name);
    return at ? torch::jit::peek(stack_, *at, info.n_args()) : c10::IValue();
  }
  Tensor tensor(std::string_view name) const { return value(name).toTensor(); }
  MaybeTensor mask() const {
    const c10::IValue given = value("attn_mask"), bias = value("attn_bias");
    return given.isTensor() ? given.toOptional<Tensor>() : bias.toOptional<Tensor>();
  }
  Fused fused(SDPBackend backend) const {
    return {name(), backend, value("dropout_p").toDouble(), value("is_causal").toBool(),
            value("scale").toOptional<double>()};
  }
  /// Replaces the arguments by the results.
  template <class... Results>
  void finish(Results... results) {
    torch::jit::drop(stack_, info.n_args());
    torch::jit::push(stack_, std::move(results)...);
  }

  OpInfo info;

 private:
  torch::jit::Stack& stack_;
  const CommScope scope_;
  const KernelSpan span_;
};

/// The statistics of cuDNN's operator have a last dim of extent 1.
constexpr bool has_columns(SDPBackend backend) { return backend == SDPBackend::cudnn_attention; }

/// The weights of a debug mask are padded, so every rank computes all of them.
void run_with_weights(OpInfo& info, torch::jit::Stack* stack) {
  static const Rule gathered = Rule::gathered();
  info.rule = &gathered;
  dispatch(info, stack);
}

template <SDPBackend backend>
void forward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  if (backend == SDPBackend::flash_attention && call.value("return_debug_mask").toOptional<bool>().value_or(false))
    return run_with_weights(call.info, stack);
  const Tensor query = call.tensor("query"), key = call.tensor("key");
  const auto [output, logsumexp, random] = call.fused(backend).forward(query, key, call.tensor("value"), call.mask());
  const Tensor statistics = has_columns(backend) ? logsumexp.unsqueeze(-1) : logsumexp;
  // `random` takes the place of both seed and offset.
  if (call.info.n_returns() == 2)
    call.finish(output, statistics);
  else if (call.info.n_returns() == 4)
    call.finish(output, statistics, random, random);
  else
    call.finish(output, statistics, Tensor(), Tensor(), query.size(2), key.size(2), random, random,
                output.new_empty({0}));
}

template <SDPBackend backend>
void backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  const Tensor grad = torch::jit::peek(*stack, 0, call.info.n_args()).toTensor(), logsumexp = call.tensor("logsumexp");
  const c10::IValue wanted = call.value("grad_input_mask");
  const auto random = call.value("philox_seed").toOptional<Tensor>().value_or(Tensor());
  auto [of_query, of_key, of_value, of_mask] = call.fused(backend).backward(
      grad, call.tensor("query"), call.tensor("key"), call.tensor("value"), call.mask(),
      {call.tensor("out"), has_columns(backend) ? logsumexp.squeeze(-1) : logsumexp, random},
      /*with_mask=*/!wanted.isNone() && wanted.toBoolList().get(3));
  if (call.info.n_returns() == 3)
    call.finish(of_query, of_key, of_value);
  else
    call.finish(of_query, of_key, of_value, of_mask);
}

template <SDPBackend backend>
void add(const std::string& name) {
  AtenKernels& kernels = aten_kernels();
  kernels.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&forward<backend>>());
  kernels.impl((name + "_backward").c_str(), torch::CppFunction::makeFromBoxedFunction<&backward<backend>>());
}

}  // namespace

void register_attention_operators(RuleTable& /*table*/) {
  add<SDPBackend::flash_attention>("_scaled_dot_product_flash_attention_for_cpu");
  add<SDPBackend::flash_attention>("_scaled_dot_product_flash_attention");
  add<SDPBackend::efficient_attention>("_scaled_dot_product_efficient_attention");
  add<SDPBackend::cudnn_attention>("_scaled_dot_product_cudnn_attention");
  add<SDPBackend::overrideable>("_scaled_dot_product_fused_attention_overrideable");
}

}  // namespace shardwise
