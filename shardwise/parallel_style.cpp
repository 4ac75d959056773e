#include "shardwise/parallel_style.h"

#include "shardwise/module_tensors.h"
#include "shardwise/placements.h"
#include "text/check.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace shardwise {
namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;
using torch::nn::Module;

std::vector<ValueLayout> value_layouts(const char* style, const MaybeLayouts& given, const MaybeLayouts& wanted) {
  SW_CHECK_VALUE(
      given.size() == wanted.size(),
      "[{}] got {} layouts and {} desired layouts. Give one per value, and nullopt for values to leave unchanged.",
      style, given.size(), wanted.size());
  std::vector<ValueLayout> result;
  for (size_t i = 0; i < given.size(); ++i) result.push_back({given[i], given[i] ? wanted[i] : std::nullopt, {}});
  return result;
}

}  // namespace

template <LayerSplit split>
ModuleLayouts LayerStyle<split>::operator()(const Module& module) const {
  const auto* const linear = dynamic_cast<const LinearImpl*>(&module);
  SW_CHECK_NOT_IMPLEMENTED(linear || dynamic_cast<const EmbeddingImpl*>(&module),
                           "[parallelize_module] {} shards torch::nn::Linear and torch::nn::Embedding, not {}. Name "
                           "the linear layers and embeddings inside it, or write a ParallelStyle of your own.",
                           split == LayerSplit::kColwise ? "ColwiseParallel" : "RowwiseParallel", kind_of(module));
  const auto placed = layer_placements(linear ? LayerKind::kLinear : LayerKind::kEmbedding, split,
                                       split == LayerSplit::kColwise ? output_ : input_);
  ModuleLayouts result;
  result.parameters = {{"weight", placed.weight}};
  if (linear && linear->bias.defined()) result.parameters.emplace_back("bias", placed.bias);
  result.inputs = {{input_.value_or(placed.input), placed.input,
                    linear ? std::optional(linear->options.in_features()) : std::nullopt}};
  result.outputs = {{{}, output_.value_or(placed.output), {}}};
  result.use_local_output = use_local_output_;
  return result;
}

ModuleLayouts SequenceParallel::operator()(const Module& module) const {
  ModuleLayouts result;
  for (const auto& parameter : module.named_parameters(/*recurse=*/false))
    if (parameter.value().defined()) result.parameters.emplace_back(parameter.key(), Replicate());
  result.inputs = {{Shard(sequence_dim_), Shard(sequence_dim_), {}}};
  result.outputs = {ValueLayout{}};
  result.use_local_output = use_local_output_;
  return result;
}

template <bool of_inputs>
PrepareModule<of_inputs>::PrepareModule(const MaybeLayouts& layouts, const MaybeLayouts& desired_layouts,
                                        bool use_local_output)
    : layouts_(value_layouts(of_inputs ? "PrepareModuleInput" : "PrepareModuleOutput", layouts, desired_layouts)),
      use_local_output_(use_local_output) {}

template <bool of_inputs>
ModuleLayouts PrepareModule<of_inputs>::operator()(const Module& /*module*/) const {
  ModuleLayouts result;
  (of_inputs ? result.inputs : result.outputs) = layouts_;
  (of_inputs ? result.use_local_inputs : result.use_local_output) = use_local_output_;
  return result;
}

template class LayerStyle<LayerSplit::kColwise>;
template class LayerStyle<LayerSplit::kRowwise>;
template class PrepareModule<true>;
template class PrepareModule<false>;

}  // namespace shardwise
