#include "ops/products/attention_kernels.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <limits>

namespace shardwise {
namespace {

using at::SDPBackend;

constexpr int64_t kBiasAlignment = 8;  // elements; torch's memory-efficient kernel requires both
constexpr int64_t kRowsOfStatistics = 32;

c10::SymInt up_to_multiple(const c10::SymInt& n, int64_t of) { return (of - n % of) % of; }

at::Tensor with_dense_rows(const at::Tensor& tensor) {
  return tensor.sym_stride(-1) == 1 ? tensor : tensor.contiguous();
}

/// With dropout, seeds the device's generator while this object lives.
class SeededDraws {
 public:
  SeededDraws(const AttentionCall& call, c10::Device device) {
    if (call.dropout_p == 0 || device.is_meta()) return;
    generator_ = at::globalContext().defaultGenerator(device);
    state_ = generator_.get_state();
    generator_.set_current_seed(call.seed);
  }
  ~SeededDraws() {
    if (state_.defined()) generator_.set_state(state_);
  }
  C10_DISABLE_COPY_AND_ASSIGN(SeededDraws);

 private:
  at::Generator generator_;
  at::Tensor state_;
};

/// The mask as the memory-efficient kernel requires it: expanded to full size, with aligned rows.
std::optional<at::Tensor> aligned_bias(const std::optional<at::Tensor>& mask, const at::Tensor& query,
                                       const at::Tensor& key) {
  if (!mask) return mask;
  const c10::SymInt n = mask->sym_size(-1);
  return at::constant_pad_nd_symint(*mask, {0, up_to_multiple(n, kBiasAlignment)})
      .slice_symint(-1, 0, n)
      .expand_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)});
}

/// Runs one kernel, which takes these queries and keys for the whole sequence.
Attended run(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const AttentionCall& call,
             bool is_causal) {
  const double p = call.dropout_p;
  switch (call.backend) {
    case SDPBackend::flash_attention: {
      if (takes_cpu_kernels(query)) {
        auto [output, logsumexp] =
            at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, p, is_causal, call.mask, call.scale);
        return {output, logsumexp, {}};
      }
      const auto results = at::_scaled_dot_product_flash_attention(query, key, value, p, is_causal,
                                                                   /*return_debug_mask=*/false, call.scale);
      return {std::get<0>(results), std::get<1>(results), std::get<6>(results).view(at::kLong)};
    }
    case SDPBackend::efficient_attention: {
      const auto [output, logsumexp, seed, offset] =
          at::_scaled_dot_product_efficient_attention(query, key, value, aligned_bias(call.mask, query, key),
                                                      /*compute_log_sumexp=*/true, p, is_causal, call.scale);
      return {output, logsumexp.slice_symint(-1, 0, query.sym_size(2)), at::stack({seed, offset})};
    }
    case SDPBackend::cudnn_attention: {
      const auto results =
          at::_scaled_dot_product_cudnn_attention(query, key, value, call.mask, /*compute_log_sumexp=*/true, p,
                                                  is_causal, /*return_debug_mask=*/false, call.scale);
      return {std::get<0>(results), std::get<1>(results).squeeze(-1),
              at::stack({std::get<6>(results), std::get<7>(results)})};
    }
    default: {
      const auto results = at::_scaled_dot_product_fused_attention_overrideable(
          query, key, value, call.mask, p, is_causal, /*return_debug_mask=*/false, call.scale);
      return {std::get<0>(results), std::get<1>(results), at::stack({std::get<6>(results), std::get<7>(results)})};
    }
  }
}

AttentionGradients run_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const Attended& attended, const AttentionCall& call,
                                bool is_causal, bool with_mask) {
  const double p = call.dropout_p;
  const c10::SymInt n_queries = query.sym_size(2), n_keys = key.sym_size(2);
  const bool is_on_cpu = call.backend == SDPBackend::flash_attention && takes_cpu_kernels(query);
  at::Tensor random;
  if (!is_on_cpu)
    random = attended.random.defined() ? attended.random.select(0, 0).select(0, 0).select(0, 0)
                                       : at::zeros({2}, query.options().dtype(at::kLong));
  const auto seed = [&] { return random.select(0, 0); };
  const auto offset = [&] { return random.select(0, 1); };
  const at::Tensor bias = call.mask.value_or(at::Tensor());
  switch (call.backend) {
    case SDPBackend::flash_attention: {
      auto [of_query, of_key, of_value] =
          is_on_cpu
              ? at::_scaled_dot_product_flash_attention_for_cpu_backward(
                    grad, query, key, value, attended.output, attended.logsumexp, p, is_causal, call.mask, call.scale)
              : at::_scaled_dot_product_flash_attention_backward_symint(
                    grad, query, key, value, attended.output, attended.logsumexp, /*cum_seq_q=*/{},
                    /*cum_seq_k=*/{}, n_queries, n_keys, p, is_causal, random.view(at::kUInt64),
                    at::zeros({0}, random.options().dtype(at::kUInt64)), call.scale);
      return {of_query, of_key, of_value, {}};
    }
    case SDPBackend::efficient_attention: {
      const at::Tensor statistics =
          at::constant_pad_nd_symint(attended.logsumexp, {0, up_to_multiple(n_queries, kRowsOfStatistics)},
                                     std::numeric_limits<double>::infinity());
      auto [of_query, of_key, of_value, of_mask] = at::_scaled_dot_product_efficient_attention_backward(
          grad, query, key, value, aligned_bias(call.mask, query, key).value_or(at::Tensor()), attended.output,
          statistics, seed(), offset(), p, {true, true, true, with_mask}, is_causal, call.scale);
      return {of_query, of_key, of_value, with_mask ? at::sum_to(of_mask, bias.sym_sizes()) : at::Tensor()};
    }
    case SDPBackend::cudnn_attention: {
      auto [of_query, of_key, of_value] = at::_scaled_dot_product_cudnn_attention_backward_symint(
          grad, query, key, value, attended.output, attended.logsumexp.unsqueeze(-1), seed(), offset(), bias,
          /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, n_queries, n_keys, p, is_causal, call.scale);
      return {of_query, of_key, of_value, {}};
    }
    default: {
      auto [of_query, of_key, of_value, of_mask] = at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
          grad, query, key, value, bias, {true, true, true, with_mask}, attended.output, attended.logsumexp,
          /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, n_queries, n_keys, p, is_causal, seed(), offset(), call.scale);
      return {of_query, of_key, of_value, with_mask ? at::sum_to(of_mask, bias.sym_sizes()) : at::Tensor()};
    }
  }
}

/// The keys that causal queries see. All queries see [0, past); in [past, end) each query sees the keys up to its own.
struct SeenKeys {
  SeenKeys(const at::Tensor& query, const at::Tensor& key, const AttentionCall& call)
      : n_queries(query.sym_size(2)),
        n_keys(key.sym_size(2)),
        past(n_keys.min(call.first_row)),
        end(n_keys.min(past + n_queries)) {}

  at::Tensor any(const at::Tensor& tensor) const { return tensor.slice_symint(2, 0, end); }
  at::Tensor before(const at::Tensor& tensor) const { return tensor.slice_symint(2, 0, past); }
  at::Tensor own(const at::Tensor& tensor) const { return tensor.slice_symint(2, past, end); }
  /// The gradient of all keys, from the gradients of the keys before `end`. It is 0 for later keys.
  at::Tensor of_all(const std::vector<at::Tensor>& grads) const {
    if (grads.size() == 1 && end == n_keys) return grads[0];
    std::vector<at::Tensor> rows = c10::fmap(grads, [&](const at::Tensor& grad) { return grad.transpose(1, 2); });
    const at::Tensor& any = rows[0];
    if (end < n_keys)
      rows.push_back(
          at::zeros_symint({any.sym_size(0), n_keys - end, any.sym_size(2), any.sym_size(3)}, any.options()));
    return at::cat(rows, 1).transpose(1, 2);
  }

  /// `call` on the keys before `end`, with a causal mask.
  AttentionCall masked(AttentionCall call, const at::Tensor& query) const {
    const at::Tensor terms = !call.mask                    ? at::zeros({1, 1}, query.options())
                             : call.mask->sym_size(-1) > 1 ? call.mask->narrow_symint(-1, 0, end)
                                                           : *call.mask;
    const at::Tensor is_ahead =
        at::ones_symint({n_queries, end}, query.options().dtype(at::kBool)).triu(call.first_row + 1);
    call.mask = terms.masked_fill(is_ahead, -std::numeric_limits<double>::infinity());
    call.is_causal = false;
    return call;
  }
  /// The gradient of the caller's mask, from the gradient of masked()'s mask.
  at::Tensor of_mask(const at::Tensor& grad, const at::Tensor& mask) const {
    const c10::SymInt n_unseen = mask.sym_size(-1) > 1 ? n_keys - end : 0;
    return at::sum_to(at::constant_pad_nd_symint(grad, {0, n_unseen}), mask.sym_sizes());
  }

  c10::SymInt n_queries, n_keys, past, end;
};

/// True if the kernel's own causal mask does not suffice: the queries do not begin at row 0, and with a mask or dropout the results of two parts of
/// the keys cannot be merged.
bool needs_mask(const AttentionCall& call) {
  return call.is_causal && call.first_row > 0 && (call.mask || call.dropout_p > 0);
}

/// If there are more or fewer queries than keys, kernels align the causal mask differently: the last query sees the keys up to the last one (true),
/// or query i sees the keys up to i (false).
bool aligns_last(const at::Tensor& query, const AttentionCall& call) {
  return call.backend == SDPBackend::flash_attention && !takes_cpu_kernels(query);
}

/// Merges the attention to both parts of the keys. Half-precision parts are weighed in float32.
Attended merged(const Attended& past, const Attended& own) {
  const at::Tensor share = at::sigmoid(past.logsumexp.sub(own.logsumexp)).unsqueeze(-1);
  const at::ScalarType dtype = share.scalar_type();
  return {at::lerp(own.output.to(dtype), past.output.to(dtype), share).to(own.output.scalar_type()),
          at::logaddexp(past.logsumexp, own.logsumexp),
          {}};
}

Attended attend_seen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionCall& call) {
  if (!call.is_causal) return run(query, key, value, call, false);
  const SeenKeys seen(query, key, call);
  if (aligns_last(query, call)) return run(query, seen.any(key), seen.any(value), call, true);
  if (needs_mask(call)) return run(query, seen.any(key), seen.any(value), seen.masked(call, query), false);
  if (seen.past == 0) return run(query, key, value, call, true);
  const Attended past = run(query, seen.before(key), seen.before(value), call, false);
  return seen.past == seen.end ? past : merged(past, run(query, seen.own(key), seen.own(value), call, true));
}

}  // namespace

bool takes_cpu_kernels(const at::Tensor& tensor) {
  return tensor.is_cpu() || (tensor.is_meta() && planned_device_on_meta() == c10::kCPU);
}

Attended attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const AttentionCall& call) {
  if (query.sym_numel() == 0 || key.sym_numel() == 0) {
    const auto zeros = [&](c10::SymIntArrayRef sizes, at::ScalarType dtype) {
      return at::zeros_symint(sizes, query.options().dtype(dtype));
    };
    const c10::SymInt batch = query.sym_size(0), heads = query.sym_size(1), rows = query.sym_size(2);
    const at::ScalarType dtype = query.scalar_type();
    return {zeros({batch, rows, heads, value.sym_size(3)}, dtype).transpose(1, 2),
            zeros({batch, rows, heads}, at::toOpMathType(dtype)).transpose(1, 2),
            call.dropout_p == 0 ? at::Tensor() : zeros({batch, heads, rows, 2}, at::kLong)};
  }
  const SeededDraws seeded(call, query.device());
  Attended result = attend_seen(with_dense_rows(query), with_dense_rows(key), with_dense_rows(value), call);
  if (call.dropout_p == 0)
    result.random.reset();
  else
    result.random = result.random.expand_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2), 2});
  return result;
}

AttentionGradients attend_backward(const at::Tensor& grad, const at::Tensor& given_query, const at::Tensor& given_key,
                                   const at::Tensor& given_value, const Attended& attended, const AttentionCall& call,
                                   bool with_mask) {
  if (given_query.sym_numel() == 0 || given_key.sym_numel() == 0)
    return {at::zeros_like(given_query), at::zeros_like(given_key), at::zeros_like(given_value),
            with_mask ? at::zeros_like(*call.mask) : at::Tensor()};
  const at::Tensor query = with_dense_rows(given_query), key = with_dense_rows(given_key),
                   value = with_dense_rows(given_value);
  const SeenKeys seen(query, key, call);
  const bool is_in_one = aligns_last(query, call), by_mask = !is_in_one && needs_mask(call);
  if (call.is_causal && (is_in_one || by_mask)) {
    AttentionGradients grads = run_backward(grad, query, seen.any(key), seen.any(value), attended,
                                            by_mask ? seen.masked(call, query) : call, is_in_one, with_mask);
    if (by_mask && with_mask) grads.mask = seen.of_mask(grads.mask, *call.mask);
    return {grads.query, seen.of_all({grads.key}), seen.of_all({grads.value}), grads.mask};
  }
  if (!call.is_causal || seen.past == 0)
    return run_backward(grad, query, key, value, attended, call, call.is_causal, with_mask);
  const AttentionGradients past =
      run_backward(grad, query, seen.before(key), seen.before(value), attended, call, false, false);
  if (seen.past == seen.end) return past;
  const AttentionGradients own = run_backward(grad, query, seen.own(key), seen.own(value), attended, call, true, false);
  return {past.query.add(own.query), seen.of_all({past.key, own.key}), seen.of_all({past.value, own.value}), {}};
}

}  // namespace shardwise
