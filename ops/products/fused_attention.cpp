// ops/products/fused_attention.cpp: torch's fused attention operators and their backwards. Each rank runs the kernel on its batches, heads and
// queries; keys and values are whole there. Where queries are sharded, the gradients of keys and values are Partial sums.
//
// Two operators of our own stand for all of them, with one rule: their kernels take queries from the middle, pieces without elements, and
// draw for dropout from a seed that the ranks share and the piece's place, so that replicas agree and shards differ. Which weights are
// dropped depends on the layout.
//
// Queries are gathered where a causal call also has a mask or, except for torch's flash kernel for GPUs, dropout.
#include "ops/families.h"
#include "ops/products/attention_kernels.h"
#include "ops/support/axes.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "ops/support/maybe_tensor.h"
#include "ops/support/own_operator.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/random.h"
#include "runtime/dispatch/gather_fallback.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Nine = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// On plain tensors. The pieces' seeds differ by `place`, the index of their first query in the whole. `draws`: dropout_p is not 0, for
// decisions do not depend on numbers.

AttentionCall call_of(const MaybeTensor& mask, double dropout_p, bool is_causal, std::optional<double> scale,
                      int64_t backend, int64_t first_row) {
  return {.backend = static_cast<SDPBackend>(backend),
          .mask = is_given(mask) ? mask : std::nullopt,
          .dropout_p = dropout_p,
          .is_causal = is_causal,
          .scale = scale,
          .first_row = first_row};
}

Three compute_attention(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                        double dropout_p, bool /*draws*/, bool is_causal, std::optional<double> scale, int64_t backend,
                        bool /*keeps_rows*/, const at::Scalar& seed, int64_t first_row, int64_t place) {
  AttentionCall call = call_of(mask, dropout_p, is_causal, scale, backend, first_row);
  call.seed = static_cast<uint64_t>(seed.toLong()) + static_cast<uint64_t>(place) * 0x9E3779B97F4A7C15ull;
  Attended result = attend(query, key, value, call);
  return {result.output, result.logsumexp, result.random};
}

/// Results are ordered in memory as the query or, by torch's memory-efficient kernel, query by query.
Three shape_of_attention(const Tensor& query, const Tensor& /*key*/, const Tensor& value, const MaybeTensor& /*mask*/,
                         double /*dropout_p*/, bool draws, bool /*is_causal*/, std::optional<double> /*scale*/,
                         int64_t backend, bool /*keeps_rows*/, const at::Scalar& /*seed*/, int64_t /*first_row*/,
                         int64_t /*place*/) {
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2);
  const auto of_sums = query.options().dtype(at::toOpMathType(query.scalar_type()));
  const bool by_rows = static_cast<SDPBackend>(backend) == SDPBackend::efficient_attention;
  return {
      by_rows ? at::empty({batch, rows, heads, value.size(3)}, query.options()).transpose(1, 2) : at::empty_like(query),
      at::empty({batch, rows, heads}, of_sums).transpose(1, 2),
      draws ? at::empty({batch, heads, rows, 2}, query.options().dtype(at::kLong)) : Tensor()};
}

Four compute_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& output, const Tensor& logsumexp, const MaybeTensor& random, const MaybeTensor& mask,
                      double dropout_p, bool is_causal, std::optional<double> scale, int64_t backend,
                      bool /*keeps_rows*/, bool with_mask, int64_t first_row) {
  AttentionGradients grads = attend_backward(grad, query, key, value, {output, logsumexp, random.value_or(Tensor())},
                                             call_of(mask, dropout_p, is_causal, scale, backend, first_row), with_mask);
  return {grads.query, grads.key, grads.value, grads.mask};
}

Four shape_of_backward(const Tensor& /*grad*/, const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor& /*output*/, const Tensor& /*logsumexp*/, const MaybeTensor& /*random*/,
                       const MaybeTensor& mask, double /*dropout_p*/, bool /*is_causal*/,
                       std::optional<double> /*scale*/, int64_t /*backend*/, bool /*keeps_rows*/, bool with_mask,
                       int64_t /*first_row*/) {
  const auto like = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {like(query), like(key), like(value), with_mask ? at::empty(mask->sizes(), mask->options()) : Tensor()};
}

// Their rule.

/// The axes of operands and outputs by name. A head of keys is that of several consecutive heads of queries.
struct Dims4 {
  Dims4(const OpCall& call, Signature& signature)
      : query(call.operands[call.operand_at("query")].sizes), keys(call.operands[call.operand_at("key")].sizes) {
    const int64_t features = call.operands[call.operand_at("value")].sizes[3];
    const Axes axes = add_axes(signature, {query[0], keys[1], query[2], keys[2], query[3], features});
    for (const size_t whole : {3, 4, 5}) signature.factors[axes[whole].factor].is_whole = true;
    signature.factors[axes[2].factor].is_whole = call.arg("keeps_rows").toBool();
    const Axis batch = axes[0], shared = axes[1], row = axes[2], column = axes[3], e = axes[4], ev = axes[5];
    const Axis head{shared.factor, keys[1] == 0 ? 1 : query[1] / keys[1]};
    of_query = {batch, head, row, e};
    of_key = {batch, shared, column, e};
    of_value = {batch, shared, column, ev};
    of_output = {batch, head, row, ev};
    of_rows = {batch, head, row};
    of_random = {batch, head, row, Axis{}};
    if (const int at = call.operand_at("mask"); at >= 0)
      of_mask = broadcast_axes(call.operands[at].sizes, Dims{query[0], query[1], query[2], keys[2]},
                               {batch, head, row, column});
    for (const Operand& operand : call.operands) signature.inputs.push_back(axes_of(arg_name(call, operand)));
  }

  const Axes& axes_of(std::string_view name) const {
    if (name == "query") return of_query;
    if (name == "key") return of_key;
    if (name == "value") return of_value;
    if (name == "mask") return of_mask;
    if (name == "random") return of_random;
    return name == "logsumexp" ? of_rows : of_output;
  }

  c10::IntArrayRef query, keys;
  Axes of_query, of_key, of_value, of_output, of_rows, of_random, of_mask;
};

void describe_attention(const OpCall& call, Signature& signature) {
  const Dims4 axes(call, signature);
  signature.outputs = {axes.of_output, axes.of_rows, axes.of_random};
}

void describe_backward(const OpCall& call, Signature& signature) {
  const Dims4 axes(call, signature);
  signature.outputs = {axes.of_query, axes.of_key, axes.of_value, axes.of_mask};
}

void localize(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Box& queries = local.inputs[local.call.operand_at("query")];
  const c10::IntArrayRef sizes = local.call.operands[local.call.operand_at("query")].sizes;
  args[local.call.op.arg_index("first_row")] = queries.offsets[2];
  if (local.call.op.handle.schema().argumentIndexWithName("place"))
    args[local.call.op.arg_index("place")] =
        (queries.offsets[0] * sizes[1] + queries.offsets[1]) * sizes[2] + queries.offsets[2];
}

// torch's operators on distributed tensors.

std::string shape(const Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask) {
  bool fits = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.scalar_type() == key.scalar_type() &&
              query.scalar_type() == value.scalar_type();
  fits = fits && query.size(0) == key.size(0) && query.size(3) == key.size(3) &&
         key.sizes().slice(0, 3) == value.sizes().slice(0, 3) &&
         (key.size(1) == 0 ? query.size(1) == 0 : query.size(1) % key.size(1) == 0);
  TORCH_CHECK_VALUE(
      fits, fmt::format("[{}] query, key and value of {}, {} and {} do not fit each other: of one dtype, they are "
                        "[batch, heads, queries, features], and [batch, heads, keys, features] with as many heads or a "
                        "divisor. Give such.",
                        op, shape(query), shape(key), shape(value)));
  if (!is_given(mask)) return;
  const Dims scores{query.size(0), query.size(1), query.size(2), key.size(2)};
  fits = mask->dim() <= 4;
  for (int64_t dim = 1; fits && dim <= mask->dim(); ++dim)
    fits = mask->size(-dim) == 1 || mask->size(-dim) == scores[4 - dim];
  TORCH_CHECK_VALUE(fits,
                    fmt::format("[{}] a mask of {} does not broadcast to the scores' shape [{}]. Give one of [{}, "
                                "{}], or with more dims in front.",
                                op, shape(*mask), fmt::join(scores, ", "), scores[2], scores[3]));
}

/// An operator of torch's: its name, and how its kernel is called.
struct Fused {
  const char* op;
  SDPBackend backend;
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;

  bool keeps_rows(const Tensor& query, const MaybeTensor& mask) const {
    const bool draws_in_one = backend == SDPBackend::flash_attention && !query.device().is_cpu();
    return is_causal && (is_given(mask) || (dropout_p > 0 && !draws_in_one));
  }

  Attended forward(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask) const {
    static const ByRule by_rule("shardwise::fused_attention");
    check(op, query, key, value, mask);
    int64_t seed = 0;
    if (dropout_p > 0)
      for (const Tensor& tensor : {query, key, value})
        if (is_dtensor(tensor) && seed == 0) seed = static_cast<int64_t>(next_seed(*spec_of(tensor)->mesh()) >> 1) | 1;
    auto [output, logsumexp, random] = by_rule.tensors<3>(query, key, value, mask, dropout_p, dropout_p > 0, is_causal,
                                                          scale, static_cast<int64_t>(backend), keeps_rows(query, mask),
                                                          at::Scalar(seed), int64_t{0}, int64_t{0});
    return {output, logsumexp, random};
  }

  Four backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                const MaybeTensor& mask, const Attended& saved, bool with_mask = false) const {
    static const ByRule by_rule("shardwise::fused_attention_backward");
    check(op, query, key, value, mask);
    const MaybeTensor random = dropout_p > 0 ? MaybeTensor(saved.random) : std::nullopt;
    return by_rule.tensors<4>(grad, query, key, value, saved.output, saved.logsumexp, random, mask, dropout_p,
                              is_causal, scale, static_cast<int64_t>(backend), keeps_rows(query, mask),
                              with_mask && is_given(mask), int64_t{0});
  }
};

Three first_three(Four all) { return {std::get<0>(all), std::get<1>(all), std::get<2>(all)}; }

Two flash_on_cpu(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
                 const MaybeTensor& mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_for_cpu", SDPBackend::flash_attention, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return {result.output, result.logsumexp};
}

Three flash_on_cpu_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                            const Tensor& output, const Tensor& logsumexp, double dropout_p, bool is_causal,
                            const MaybeTensor& mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", SDPBackend::flash_attention,
                    dropout_p, is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, mask, {output, logsumexp, {}}));
}

/// The results of an operator that has nine of them; `random` stands for the seed, and for the offset.
Nine nine(const Attended& result, const Tensor& logsumexp, const Tensor& query, const Tensor& key) {
  return {result.output,
          logsumexp,
          {},
          {},
          query.size(2),
          key.size(2),
          result.random,
          result.random,
          result.output.new_empty({0})};
}

/// The weights of a debug mask are padded: every rank computes all of them.
Nine flash_with_weights(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p,
                        bool is_causal, std::optional<double> scale) {
  const MeshPtr& mesh = spec_of(is_dtensor(query) ? query : is_dtensor(key) ? key : value)->mesh();
  if (!mesh->is_member()) refuse_outside(op, *mesh);
  const auto whole = [&](const Tensor& tensor) { return is_dtensor(tensor) ? full_tensor(tensor) : tensor; };
  Nine results = at::_scaled_dot_product_flash_attention(whole(query), whole(key), whole(value), dropout_p, is_causal,
                                                         /*return_debug_mask=*/true, scale);
  std::apply(
      [&](auto&... result) {
        const auto wrap = [&]<class Value>(Value& value) {
          if constexpr (std::is_same_v<Value, Tensor>)
            if (value.defined())
              value = from_pieces({value}, Spec::intern(mesh, value.sizes(), Placements(mesh->ndim()), value.strides(),
                                                        value.scalar_type()));
        };
        (wrap(result), ...);
      },
      results);
  return results;
}

Nine flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
           bool return_debug_mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention", SDPBackend::flash_attention, dropout_p, is_causal,
                    scale};
  if (return_debug_mask) return flash_with_weights(fused.op, query, key, value, dropout_p, is_causal, scale);
  const Attended result = fused.forward(query, key, value, std::nullopt);
  return nine(result, result.logsumexp, query, key);
}

Three flash_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
                     const Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p,
                     bool is_causal, const Tensor& random, const Tensor& /*offset*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_backward", SDPBackend::flash_attention, dropout_p,
                    is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, std::nullopt, {output, logsumexp, random}));
}

Four efficient(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
               bool /*compute_log_sumexp*/, double dropout_p, bool is_causal, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_efficient_attention", SDPBackend::efficient_attention, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return {result.output, result.logsumexp, result.random, result.random};
}

Four efficient_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& mask, const Tensor& output, const Tensor& logsumexp, const Tensor& random,
                        const Tensor& /*offset*/, double dropout_p, std::array<bool, 4> wanted, bool is_causal,
                        std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_efficient_attention_backward", SDPBackend::efficient_attention,
                    dropout_p, is_causal, scale};
  return fused.backward(grad, query, key, value, mask, {output, logsumexp, random}, wanted[3]);
}

Nine cudnn(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
           bool /*compute_log_sumexp*/, double dropout_p, bool is_causal, bool /*return_debug_mask*/,
           std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_cudnn_attention", SDPBackend::cudnn_attention, dropout_p, is_causal,
                    scale};
  const Attended result = fused.forward(query, key, value, mask);
  return nine(result, result.logsumexp.unsqueeze(-1), query, key);
}

Three cudnn_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& logsumexp, const Tensor& random, const Tensor& /*offset*/,
                     const Tensor& mask, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                     c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                     std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_cudnn_attention_backward", SDPBackend::cudnn_attention, dropout_p,
                    is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, mask, {output, logsumexp.squeeze(-1), random}));
}

Nine overrideable(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                  double dropout_p, bool is_causal, bool /*return_debug_mask*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_fused_attention_overrideable", SDPBackend::overrideable, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return nine(result, result.logsumexp, query, key);
}

Four overrideable_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                           const Tensor& mask, std::array<bool, 4> wanted, const Tensor& output,
                           const Tensor& logsumexp, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                           c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                           const Tensor& random, const Tensor& /*offset*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_fused_attention_overrideable_backward", SDPBackend::overrideable,
                    dropout_p, is_causal, scale};
  return fused.backward(grad, query, key, value, mask, {output, logsumexp, random}, wanted[3]);
}

}  // namespace

void register_fused_attention(RuleTable& table) {
  const auto attention = [] { return torch::CppFunction(&compute_attention); };
  const auto backward = [] { return torch::CppFunction(&compute_backward); };
  define_operator(
      "fused_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool draws, "
      "bool is_causal, float? scale, int backend, bool keeps_rows, Scalar seed, int first_row, int place) -> (Tensor, "
      "Tensor, Tensor)",
      {.compute = attention, .shape = [] { return torch::CppFunction(&shape_of_attention); }, .traced = attention});
  define_operator(
      "fused_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
      "Tensor? random, Tensor? mask, float dropout_p, bool is_causal, float? scale, int backend, bool keeps_rows, "
      "bool with_mask, int first_row) -> (Tensor, Tensor, Tensor, Tensor)",
      {.compute = backward, .shape = [] { return torch::CppFunction(&shape_of_backward); }, .traced = backward});
  table.add("shardwise::fused_attention", Rule("attention", describe_attention).localized(localize));
  table.add("shardwise::fused_attention_backward", Rule("attention_backward", describe_backward).localized(localize));
  AtenKernels& kernels = aten_kernels();
  kernels.impl("_scaled_dot_product_flash_attention_for_cpu", &flash_on_cpu);
  kernels.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_on_cpu_backward);
  kernels.impl("_scaled_dot_product_flash_attention", &flash);
  kernels.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  kernels.impl("_scaled_dot_product_efficient_attention", &efficient);
  kernels.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  kernels.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  kernels.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
  kernels.impl("_scaled_dot_product_fused_attention_overrideable", &overrideable);
  kernels.impl("_scaled_dot_product_fused_attention_overrideable_backward", &overrideable_backward);
}

}  // namespace shardwise
