// ops/embedding/bag_graph.cpp: F.embedding_bag in traced programs. Its messages depend on values, so each of its steps runs when the graph runs.
#include "ops/embedding/bag_lookup.h"
#include "ops/support/derivative.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/redistribute/traced_step.h"
#include "runtime/tensor/symbolic_sizes.h"

#include <ATen/ops/constant_pad_nd.h>

namespace shardwise {
namespace {

using kernels::Pooling;
using torch::autograd::variable_list;

enum BagOperand : uint8_t { kTable, kIds, kOffsets, kWeights, kGrad };
using BagOperands = std::array<at::Tensor, 5>;  // undefined where a step does not need one
using Compute = std::function<std::vector<at::Tensor>(const BagOperands&)>;

/// The tensor of `spec` whose pieces begin at `next`, which moves behind them.
at::Tensor next_of(const SpecPtr& spec, const at::Tensor*& next) {
  const at::Tensor* begin = std::exchange(next, next + spec->boxes().size());
  return wrap(spec, Shards(begin, next));
}

/// Adds a step that moves the results of `compute` to the layouts `results`.
std::vector<at::Tensor> add_bag_step(const BagOperands& operands, const std::vector<SpecPtr>& results,
                                     std::string words, const Compute& compute) {
  TracedStep step{{}, results, std::move(words)};
  std::array<SpecPtr, 5> specs;
  Shards pieces;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].defined()) continue;
    const auto* impl = maybe_dtensor(operands[i]);
    step.operands.push_back(specs[i] = impl->spec());
    pieces.append(impl->local_tensors().begin(), impl->local_tensors().end());
  }
  step.call = [=](const Shards& given) {
    Shards made;
    if (!results[0]->is_member()) return made;
    const CommScope scope(kEmbeddingBag);
    BagOperands values;
    const auto* next = given.begin();
    for (size_t i = 0; i < specs.size(); ++i)
      if (specs[i]) values[i] = next_of(specs[i], next);
    const std::vector<at::Tensor> computed = compute(values);
    for (size_t i = 0; i < results.size(); ++i) {
      const at::Tensor moved = redistribute(computed[i], results[i]->placements().vec());
      made.append(maybe_dtensor(moved)->shards().begin(), maybe_dtensor(moved)->shards().end());
    }
    return made;
  };
  const Shards made = add_step(step, pieces);
  std::vector<at::Tensor> wrapped;
  const auto* next = made.begin();
  for (const SpecPtr& spec : results) wrapped.push_back(next_of(spec, next));
  return wrapped;
}

/// The arguments of both steps.
struct StepArguments : BagArguments {
  bool has_plain_offsets = false;  // the ranks compare them if bags have different lengths

  /// Starts the lookup. `weights`: replaced by those of the ids in bags, laid out as the lookup needs them.
  BagLookup start(const SpecPtr& table, const BagOperands& given, at::Tensor& weights) const {
    const LookupScope scope(options);
    at::Tensor offsets = has_plain_offsets ? maybe_dtensor(given[kOffsets])->shards()[0] : given[kOffsets];
    if (has_plain_offsets && !BagOffsets::are_even(offsets, include_last_offset, given[kIds].numel())) {
      BagOffsets::check_equal(kEmbeddingBag, offsets, table->mesh());
      offsets = given[kOffsets];
    }
    weights = given[kWeights];
    BagLookup call = start_bags(table, given[kIds], offsets, mode, weights, include_last_offset, padding_idx);
    call.by_freq = by_freq;
    return call;
  }

  std::string words() const {
    std::string text = fmt::format("mode {} by_freq {} last {} padding {} plain {} exchange {} checks {}", mode,
                                   by_freq, include_last_offset, padding_idx.value_or(-1), has_plain_offsets,
                                   static_cast<int>(options.exchange), options.checks_ids);
    for (const Link& link : options.links) text += fmt::format(" {:a} {:a}", link.latency_us, link.gb_per_s);
    return text;
  }
};

/// The gradients of the table and the weights that are wanted. `traced`: the call as it was traced, without tensors.
variable_list gradients_in_graph(const BagLookup& traced, StepArguments arguments, BagOperands operands,
                                 const Wanted& wanted) {
  BagLookup layouts = traced;
  layouts.wants_weights = wanted[1];
  const BagGradientSpecs specs = specs_of_gradients(layouts, *spec_of(operands[kGrad]));
  const bool is_max = traced.pooling == Pooling::kMax;
  if (!is_max && !wanted[1]) operands[kTable] = at::Tensor();
  arguments.options.checks_ids = false;  // the forward checked them
  const auto compute = [=, table = traced.lookup.table](const BagOperands& given) {
    at::Tensor weights;
    BagLookup call = arguments.start(table, given, weights);
    call.wants_weights = wanted[1];
    if (is_max || (call.wants_weights && call.lookup.row_exchange))
      pool_bags(call, given[kTable], weights, /*needs_grad=*/true);
    else
      locate_bags(call, weights);
    if (call.wants_weights && !call.lookup.row_exchange) call.table = given[kTable];
    BagGradients grads = bag_gradients(call, given[kGrad], wanted[0]);
    if (wanted[1])
      if (const int64_t n_unused = given[kIds].size(0) - grads.weights.size(0); n_unused > 0)
        grads.weights = at::constant_pad_nd(grads.weights, {0, n_unused});
    std::vector<at::Tensor> made;
    if (wanted[0]) made.push_back(grads.table);
    if (wanted[1]) made.push_back(grads.weights);
    return made;
  };
  std::vector<SpecPtr> results;
  if (wanted[0]) results.push_back(specs.table);
  if (wanted[1]) results.push_back(specs.weights);
  const auto words = fmt::format("gradients of bags {} {} {}", wanted[0], wanted[1], arguments.words());
  const std::vector<at::Tensor> made = add_bag_step(operands, results, words, compute);
  return {wanted[0] ? made.front() : at::Tensor(), wanted[1] ? made.back() : at::Tensor()};
}

/// `tensor` with numbers for its sizes.
at::Tensor without_symbols_of(const at::Tensor& tensor) {
  const auto* impl = maybe_dtensor(tensor);
  return impl ? wrap(impl->spec(), without_symbols(impl->local_tensors())) : without_symbols({tensor})[0];
}

}  // namespace

at::Tensor pool_bags_in_graph(const at::Tensor& table, at::Tensor ids, const at::Tensor& given_offsets,
                              at::Tensor weights, const BagArguments& given) {
  const SpecPtr spec = spec_of(table);
  const at::Tensor offsets = without_symbols_of(given_offsets);
  ids = without_symbols_of(ids);
  StepArguments arguments{given};
  BagLookup call = prepare_bags(spec, ids, given.mode, weights, given.padding_idx);
  call.offsets = BagOffsets::even(kEmbeddingBag, offsets, given.include_last_offset, ids.numel());
  plan_bags(call, spec_of(ids));
  call.found = spec_of_found(call);
  const SpecPtr result = spec_of_result(call);
  call.offsets = {};
  arguments.has_plain_offsets = !is_dtensor(offsets);
  if (weights.defined()) weights = redistribute(weights, call.lookup.plan->ids);
  const BagOperands operands{
      table, ids, arguments.has_plain_offsets ? replica_of(offsets, spec->mesh()) : offsets, weights, {}};
  const auto pool = [=](const BagOperands& own) {
    at::Tensor own_weights;
    BagLookup started = arguments.start(spec, own, own_weights);
    return std::vector{pool_bags(started, own[kTable], own_weights, /*needs_grad=*/false)};
  };
  at::Tensor bags = add_bag_step(operands, {result}, "bags " + arguments.words(), pool)[0];
  return with_derivative({table, weights}, std::move(bags), {operands.begin(), operands.begin() + kGrad},
                         "EmbeddingBagBackward",
                         [=](const at::Tensor& grad, const variable_list& saved, const Wanted& wanted) {
                           BagOperands all{saved[0], saved[1], saved[2], saved[3], grad};
                           return gradients_in_graph(call, arguments, std::move(all), wanted);
                         });
}

}  // namespace shardwise
