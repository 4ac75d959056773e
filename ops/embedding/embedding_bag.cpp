// ops/embedding/embedding_bag.cpp: sums, means and maxima of bags of rows: arguments and autograd. bag_lookup.h computes them.
#include "ops/embedding/bag_lookup.h"
#include "ops/embedding/first_order.h"
#include "ops/embedding/lookup_operators.h"
#include "ops/embedding/saved_state.h"
#include "ops/support/kernels.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <torch/csrc/autograd/custom_function.h>

namespace shardwise {
namespace {

using kernels::Pooling;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingBag : torch::autograd::Function<EmbeddingBag> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const std::optional<at::Tensor>& weights,
                            BagLookup& call) {
    call.wants_weights = weights && weights->requires_grad();
    at::Tensor result = pool_bags(call, weight, weights.value_or(at::Tensor()), /*needs_grad=*/true);
    if (call.wants_weights && !call.lookup.row_exchange) call.table = weight;
    call.offsets = {};  // the backward reads the offsets in `bags`
    keep_state(ctx, std::move(call));
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    const std::string no_second =
        fmt::format("[{}] has no derivative of second order. Use embedding() and a sum, mean or amax.", kEmbeddingBag);
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled() || !grads[0].requires_grad(), no_second);
    const BagLookup call = kept_state<BagLookup>(ctx);
    const BagGradients result = bag_gradients(call, grads[0], ctx->needs_input_grad(0));
    if (!call.wants_weights) return {result.table, {}, {}};
    return {of_first_order(result.table, no_second), of_first_order(result.weights, no_second), {}};
  }
};

/// The weights, distributed; undefined if there are none.
at::Tensor prepared_weights(const BagLookup& call, const std::optional<at::Tensor>& weights, const at::Tensor& ids,
                            const Spec& table) {
  if (!weights || !weights->defined()) return {};
  SW_CHECK_VALUE(call.pooling == Pooling::kSum,
                 "[{}] per_sample_weights go with mode \"sum\" only. Leave them out of a mean or maximum.",
                 kEmbeddingBag);
  const at::Tensor own = distributed_operand(kEmbeddingBag, "per_sample_weights", *weights, table.mesh());
  SW_CHECK_VALUE(own.sizes() == ids.sizes(),
                 "[{}] per_sample_weights have shape [{}], the ids [{}]. Give one weight per id.", kEmbeddingBag,
                 fmt::join(own.sizes(), ", "), fmt::join(ids.sizes(), ", "));
  SW_CHECK_TYPE(own.scalar_type() == table.dtype(), "[{}] per_sample_weights are {}, the table {}. Use one dtype.",
                kEmbeddingBag, c10::toString(own.scalar_type()), c10::toString(table.dtype()));
  return own;
}

Pooling pooling_of(int64_t mode) {
  SW_CHECK_VALUE(mode >= 0 && mode <= 2, "[{}] mode {} is unknown. Use 0 (sum), 1 (mean) or 2 (max).", kEmbeddingBag,
                 mode);
  return mode == 0 ? Pooling::kSum : mode == 1 ? Pooling::kMean : Pooling::kMax;
}

/// A negative index counts from the last row. Returns -1 if there is no padding.
int64_t padding_of(std::optional<int64_t> padding_idx, int64_t n_rows) {
  if (!padding_idx) return -1;
  SW_CHECK_VALUE(*padding_idx >= -n_rows && *padding_idx < n_rows,
                 "[{}] padding_idx {} is no row of the table: it has {} rows. Use one in [{}, {}), or none.",
                 kEmbeddingBag, *padding_idx, n_rows, -n_rows, n_rows);
  return *padding_idx < 0 ? *padding_idx + n_rows : *padding_idx;
}

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// The other three results of torch's operator serve its own backward. Our backward does not need them.
Results with_nothing_else(at::Tensor result) {
  const at::Tensor none = empty({0}, spec_of(result)->mesh(), Placements(spec_of(result)->mesh()->ndim()), at::kLong);
  return {result, none, none, none};
}

Results embed_bags(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool by_freq,
                   int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                   bool include_last_offset, std::optional<int64_t> padding_idx) {
  SW_CHECK_NOT_IMPLEMENTED(
      !weight._fw_grad(/*level=*/0).defined() && !(per_sample_weights && per_sample_weights->_fw_grad(0).defined()),
      "[{}] has no forward-mode derivative. Use embedding() and a sum, mean or amax.", kEmbeddingBag);
  const at::Tensor table = prepared_table(kEmbeddingBag, weight, /*passes_sums=*/pooling_of(mode) != Pooling::kMax);
  at::Tensor weights = per_sample_weights.value_or(at::Tensor());
  if (is_tracing()) [[unlikely]] {
    if (sparse) check_not_traced("embedding_bag with a sparse gradient");
    check_no_optimizer_traced(weight);
    const BagArguments arguments{mode, by_freq, include_last_offset, padding_idx, LookupScope::current()};
    return with_nothing_else(pool_bags_in_graph(table, indices, offsets, weights, arguments));
  }
  BagLookup call = start_bags(spec_of(table), indices, offsets, mode, weights, include_last_offset, padding_idx);
  call.by_freq = by_freq;
  const bool needs_grad =
      c10::GradMode::is_enabled() && (weight.requires_grad() || (weights.defined() && weights.requires_grad()));
  if (!needs_grad) return with_nothing_else(pool_bags(call, table, weights, false));
  call.sink = GradientSink::compared(kEmbeddingBag, weight, sparse);
  return with_nothing_else(EmbeddingBag::apply(table, weights.defined() ? std::optional(weights) : std::nullopt, call));
}

Results embed_bags_unpadded(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                            bool by_freq, int64_t mode, bool sparse,
                            const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset) {
  return embed_bags(weight, indices, offsets, by_freq, mode, sparse, per_sample_weights, include_last_offset, {});
}

}  // namespace

BagLookup prepare_bags(const SpecPtr& table, at::Tensor& ids, int64_t mode, at::Tensor& weights,
                       std::optional<int64_t> padding_idx) {
  BagLookup call;
  call.pooling = pooling_of(mode);
  SW_CHECK_VALUE(ids.dim() == 1, "[{}] ids of shape [{}] have {} dims. Give them flat.", kEmbeddingBag,
                 fmt::join(ids.sizes(), ", "), ids.dim());
  call.options = LookupScope::current();
  call.padding = padding_of(padding_idx, table->sizes()[0]);
  call.lookup.table = table;
  ids = prepared_ids(kEmbeddingBag, ids, *table);
  weights = prepared_weights(call, weights, ids, *table);
  return call;
}

SpecPtr plan_bags(BagLookup& call, SpecPtr ids) {
  const SpecPtr& table = call.lookup.table;
  const auto fits = [&](const Layout& layout) { return call.offsets.fit(layout); };
  const auto plan = [&] { call.lookup.plan = plan_lookup(table, ids, call.options, call.offsets.n()); };
  if (!fits(ids->layout())) ids = ids->replicated();
  plan();
  const Placements& wanted = call.lookup.plan->ids;
  if (wanted == ids->placements() || fits(ids->with_placements(wanted)->layout())) return ids;
  ids = ids->replicated();  // the plan shards ids differently
  plan();
  return ids;
}

BagLookup start_bags(const SpecPtr& table, at::Tensor ids, const at::Tensor& offsets, int64_t mode, at::Tensor& weights,
                     bool include_last_offset, std::optional<int64_t> padding_idx) {
  BagLookup call = prepare_bags(table, ids, mode, weights, padding_idx);
  call.offsets = BagOffsets::read(kEmbeddingBag, offsets, include_last_offset, ids.numel(), table->mesh());
  if (const int64_t n_used = call.offsets.n_ids(); n_used < ids.numel()) {  // ids beyond the last offset
    ids = ids.narrow(0, 0, n_used);
    if (weights.defined()) weights = weights.narrow(0, 0, n_used);
  }
  const SpecPtr placed = plan_bags(call, spec_of(ids));
  {
    const BelowAutograd guard;
    if (placed != spec_of(ids)) ids = redistribute(ids, placed->placements().vec());
    call.lookup = TableLookup::start(kEmbeddingBag, table, ids, std::move(call.lookup.plan), call.options);
  }
  if (weights.defined()) weights = redistribute(weights, call.lookup.plan->ids);
  return call;
}

void register_embedding_bag() {
  add_composition("embedding_bag", &embed_bags_unpadded);
  add_composition("embedding_bag.padding_idx", &embed_bags);
}

}  // namespace shardwise
