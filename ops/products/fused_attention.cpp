// ops/products/fused_attention.cpp: two operators of our own replace torch's fused attention operators and their backwards. They share one rule. Each
// rank runs the kernel on its batches, heads and queries; keys and values are whole there. If queries are sharded, the gradients of keys and values
// are Partial sums.
//
// The kernels accept queries that do not begin at row 0, and pieces without elements. For dropout they draw from a seed, which the ranks share, and
// the piece's place, so that replicas agree and shards differ. Which weights are dropped depends on the layout.
#include "ops/products/fused_attention.h"
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/random.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/unboxed.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The operators on plain tensors. The pieces' seeds differ by `place`, the index of their first query in the whole. `draws`: dropout_p is not 0; a
// separate argument, because a rule's decisions do not depend on numbers. `records`: also returns what the backward needs.

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
                        double dropout_p, bool /*draws*/, bool records, bool is_causal, std::optional<double> scale,
                        int64_t backend, const at::Scalar& seed, int64_t first_row, int64_t place) {
  AttentionCall call = call_of(mask, dropout_p, is_causal, scale, backend, first_row);
  call.seed = static_cast<uint64_t>(seed.toLong()) + static_cast<uint64_t>(place) * 0x9E3779B97F4A7C15ull;
  Attended result = attend(query, key, value, call);
  if (!records) return {std::move(result.output), Tensor(), Tensor()};
  return {std::move(result.output), std::move(result.logsumexp), std::move(result.random)};
}

/// Results have the query's memory order or, with torch's memory-efficient kernel, are stored query by query.
Three shape_of_attention(const Tensor& query, const Tensor& /*key*/, const Tensor& value, const MaybeTensor& /*mask*/,
                         double /*dropout_p*/, bool draws, bool records, bool /*is_causal*/,
                         std::optional<double> /*scale*/, int64_t backend, const at::Scalar& /*seed*/,
                         int64_t /*first_row*/, int64_t /*place*/) {
  const c10::SymInt batch = query.sym_size(0), heads = query.sym_size(1), rows = query.sym_size(2);
  const auto of_sums = query.options().dtype(at::toOpMathType(query.scalar_type()));
  const bool by_rows = static_cast<SDPBackend>(backend) == SDPBackend::efficient_attention;
  return {by_rows ? at::empty_symint({batch, rows, heads, value.sym_size(3)}, query.options()).transpose(1, 2)
                  : at::empty_like(query),
          records ? at::empty_symint({batch, rows, heads}, of_sums).transpose(1, 2) : Tensor(),
          draws && records ? at::empty_symint({batch, heads, rows, 2}, query.options().dtype(at::kLong)) : Tensor()};
}

Four compute_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& output, const Tensor& logsumexp, const MaybeTensor& random, const MaybeTensor& mask,
                      double dropout_p, bool is_causal, std::optional<double> scale, int64_t backend, bool with_mask,
                      int64_t first_row) {
  AttentionGradients grads = attend_backward(grad, query, key, value, {output, logsumexp, random.value_or(Tensor())},
                                             call_of(mask, dropout_p, is_causal, scale, backend, first_row), with_mask);
  return {grads.query, grads.key, grads.value, grads.mask};
}

Four shape_of_backward(const Tensor& /*grad*/, const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor& /*output*/, const Tensor& /*logsumexp*/, const MaybeTensor& /*random*/,
                       const MaybeTensor& mask, double /*dropout_p*/, bool /*is_causal*/,
                       std::optional<double> /*scale*/, int64_t /*backend*/, bool with_mask, int64_t /*first_row*/) {
  const auto like = [](const Tensor& t) {
    return at::empty_symint({t.sym_size(0), t.sym_size(2), t.sym_size(1), t.sym_size(3)}, t.options()).transpose(1, 2);
  };
  return {like(query), like(key), like(value),
          with_mask ? at::empty_symint(mask->sym_sizes(), mask->options()) : Tensor()};
}

/// Both operators as hot operators (runtime/dispatch/unboxed.h), whose kernels are called on the pieces without torch's dispatcher.
struct AttentionOp {
  using schema = decltype(compute_attention);
  static constexpr const char* name = "shardwise::fused_attention";
  static constexpr const char* overload_name = "";
  static constexpr const char* schema_str = "";
  static constexpr auto call = compute_attention;
};

struct BackwardOp {
  using schema = decltype(compute_backward);
  static constexpr const char* name = "shardwise::fused_attention_backward";
  static constexpr const char* overload_name = "";
  static constexpr const char* schema_str = "";
  static constexpr auto call = compute_backward;
};

/// Calls an operator past torch's dispatcher, except in a traced program, where the tracer takes calls from there.
template <class Op, class... Args>
auto call(const Args&... args) {
  if (!is_tracing()) return Unboxed<Op>::call(args...);
  static const auto op = operator_of<typename Op::schema>(Op::name);
  return op.call(args...);
}

// The rule of both operators.

/// The axes of operands and outputs by name. Several consecutive heads of queries share one head of keys.
struct Dims4 {
  Dims4(const OpCall& call, Signature& signature)
      : query(call.operands[call.operand_at("query")].sizes), keys(call.operands[call.operand_at("key")].sizes) {
    const int64_t features = call.operands[call.operand_at("value")].sizes[3];
    const Axes axes = signature.add_factors({query[0], keys[1], query[2], keys[2], query[3], features});
    for (const size_t whole : {3, 4, 5}) signature.factors[axes[whole].factor].is_whole = true;
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
    for (const Operand& operand : call.operands) signature.inputs.push_back(axes_of(call.name_of(operand)));
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
  if (local.call.arg("is_causal").toBool()) args[local.call.op.arg_index("first_row")] = queries.offsets[2];
  if (local.call.op.handle.schema().argumentIndexWithName("draws") && local.call.arg("draws").toBool())
    args[local.call.op.arg_index("place")] =
        (queries.offsets[0] * sizes[1] + queries.offsets[1]) * sizes[2] + queries.offsets[2];
}

// Calls of the operators.

std::string shape(const Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask) {
  const Dims q = sizes_of(query), k = sizes_of(key), v = sizes_of(value);
  bool fits = q.size() == 4 && k.size() == 4 && v.size() == 4 && query.scalar_type() == key.scalar_type() &&
              query.scalar_type() == value.scalar_type();
  fits = fits && q[0] == k[0] && q[3] == k[3] && c10::IntArrayRef(k).slice(0, 3) == c10::IntArrayRef(v).slice(0, 3) &&
         (k[1] == 0 ? q[1] == 0 : q[1] % k[1] == 0);
  SW_CHECK_VALUE(fits,
                 "[{}] query, key and value of {}, {} and {} do not fit each other. Give tensors of one dtype: query "
                 "[batch, heads, queries, features], and key and value [batch, heads, keys, features] with the query's "
                 "number of heads or a divisor of it.",
                 op, shape(query), shape(key), shape(value));
  if (!is_given(mask)) return;
  const Dims scores{q[0], q[1], q[2], k[2]}, given = sizes_of(*mask);
  fits = given.size() <= 4;
  for (size_t dim = 1; fits && dim <= given.size(); ++dim)
    fits = given[given.size() - dim] == 1 || given[given.size() - dim] == scores[4 - dim];
  SW_CHECK_VALUE(fits,
                 "[{}] a mask of {} does not broadcast to the scores' shape [{}]. Give one of [{}, {}], or with more "
                 "dims in front.",
                 op, shape(*mask), fmt::join(scores, ", "), scores[2], scores[3]);
}

}  // namespace

Attended Fused::forward(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                        bool records) const {
  check(op, query, key, value, mask);
  int64_t seed = 0;
  if (dropout_p > 0)
    for (const Tensor& tensor : {query, key, value})
      if (is_dtensor(tensor) && seed == 0) seed = static_cast<int64_t>(next_seed(*spec_of(tensor)->mesh()) >> 1) | 1;
  auto [output, logsumexp, random] =
      call<AttentionOp>(query, key, value, mask, dropout_p, dropout_p > 0, records, is_causal, scale,
                        static_cast<int64_t>(backend), seed, /*first_row=*/0, /*place=*/0);
  return {std::move(output), std::move(logsumexp), std::move(random)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> Fused::backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                           const Tensor& value, const MaybeTensor& mask,
                                                           const Attended& saved, bool with_mask) const {
  check(op, query, key, value, mask);
  const MaybeTensor random = dropout_p > 0 ? MaybeTensor(saved.random) : std::nullopt;
  return call<BackwardOp>(grad, query, key, value, saved.output, saved.logsumexp, random, mask, dropout_p, is_causal,
                          scale, static_cast<int64_t>(backend), with_mask && is_given(mask),
                          /*first_row=*/0);
}

void register_fused_attention(RuleTable& table) {
  define_operator(
      "fused_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool draws, bool "
      "records, bool is_causal, float? scale, int backend, Scalar seed, int first_row, int place) -> (Tensor, Tensor, "
      "Tensor)",
      {.compute = &compute_attention, .shape = &shape_of_attention, .traced = &compute_attention});
  define_operator(
      "fused_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
      "Tensor? random, Tensor? mask, float dropout_p, bool is_causal, float? scale, int backend, bool with_mask, int "
      "first_row) -> (Tensor, Tensor, Tensor, Tensor)",
      {.compute = &compute_backward, .shape = &shape_of_backward, .traced = &compute_backward});
  table.keep_symbols({"shardwise::fused_attention", "shardwise::fused_attention_backward"});
  table.add("shardwise::fused_attention", Rule("attention", describe_attention).localized(localize));
  table.add("shardwise::fused_attention_backward", Rule("attention_backward", describe_backward).localized(localize));
}

}  // namespace shardwise
