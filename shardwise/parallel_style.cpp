#include "shardwise/parallel_style.h"

#include "shardwise/module_tensors.h"
#include "shardwise/placements.h"

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace shardwise {
namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;
using torch::nn::Module;

[[noreturn]] void refuse(const char* style, const Module& module) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, fmt::format("[parallelize_module] {} shards torch::nn::Linear and torch::nn::Embedding, not {}. Name the "
                         "linear layers and embeddings inside it, or write a ParallelStyle of your own.",
                         style, kind_of(module)));
}

/// The whole size of the dim that a plain input has a piece of, where a linear layer knows it: its features.
std::optional<int64_t> known_size(const LinearImpl& linear, const Placement& of_plain) {
  return of_plain.is_shard(-1) ? std::optional(linear.options.in_features()) : std::nullopt;
}

std::vector<ValueLayout> value_layouts(const char* style, const MaybeLayouts& given, const MaybeLayouts& wanted) {
  TORCH_CHECK_VALUE(given.size() == wanted.size(),
                    fmt::format("[{}] {} layouts came with {} desired ones. Give one per value, nullopt for those to "
                                "be left alone.",
                                style, given.size(), wanted.size()));
  std::vector<ValueLayout> result;
  for (size_t i = 0; i < given.size(); ++i) result.push_back({given[i], given[i] ? wanted[i] : std::nullopt, {}});
  return result;
}

}  // namespace

ModuleLayouts ColwiseParallel::operator()(const Module& module) const {
  const auto* const linear = dynamic_cast<const LinearImpl*>(&module);
  if (!linear && !dynamic_cast<const EmbeddingImpl*>(&module)) refuse("ColwiseParallel", module);
  const Placement of_plain = input_.value_or(Replicate());
  ModuleLayouts result;
  result.parameters = {{"weight", Shard(linear ? 0 : 1)}};
  if (linear && linear->bias.defined()) result.parameters.emplace_back("bias", Shard(0));
  result.inputs = {{of_plain, Replicate(), linear ? known_size(*linear, of_plain) : std::nullopt}};
  result.outputs = {{{}, output_.value_or(Shard(-1)), {}}};
  result.use_local_output = use_local_output_.value_or(false);
  return result;
}

ModuleLayouts RowwiseParallel::operator()(const Module& module) const {
  const auto* const linear = dynamic_cast<const LinearImpl*>(&module);
  if (!linear && !dynamic_cast<const EmbeddingImpl*>(&module)) refuse("RowwiseParallel", module);
  const Placement needed = linear ? Shard(-1) : Replicate();
  const Placement of_plain = input_.value_or(needed);
  ModuleLayouts result;
  result.parameters = {{"weight", Shard(linear ? 1 : 0)}};
  if (linear && linear->bias.defined()) result.parameters.emplace_back("bias", Replicate());
  result.inputs = {{of_plain, needed, linear ? known_size(*linear, of_plain) : std::nullopt}};
  result.outputs = {{{}, output_.value_or(Replicate()), {}}};
  result.use_local_output = use_local_output_.value_or(false);
  return result;
}

ModuleLayouts SequenceParallel::operator()(const Module& module) const {
  ModuleLayouts result;
  for (const auto& parameter : module.named_parameters(/*recurse=*/false))
    if (parameter.value().defined()) result.parameters.emplace_back(parameter.key(), Replicate());
  result.inputs = {{Shard(sequence_dim_), Shard(sequence_dim_), {}}};
  result.outputs = {{{}, Shard(sequence_dim_), {}}};
  result.use_local_output = use_local_output_;
  return result;
}

PrepareModuleInput::PrepareModuleInput(MaybeLayouts input_layouts, MaybeLayouts desired_input_layouts,
                                       bool use_local_output)
    : inputs_(value_layouts("PrepareModuleInput", input_layouts, desired_input_layouts)),
      use_local_output_(use_local_output) {}

ModuleLayouts PrepareModuleInput::operator()(const Module& /*module*/) const {
  ModuleLayouts result;
  result.inputs = inputs_;
  result.use_local_inputs = use_local_output_;
  return result;
}

PrepareModuleOutput::PrepareModuleOutput(MaybeLayouts output_layouts, MaybeLayouts desired_output_layouts,
                                         bool use_local_output)
    : outputs_(value_layouts("PrepareModuleOutput", output_layouts, desired_output_layouts)),
      use_local_output_(use_local_output) {}

ModuleLayouts PrepareModuleOutput::operator()(const Module& /*module*/) const {
  ModuleLayouts result;
  result.outputs = outputs_;
  result.use_local_output = use_local_output_;
  return result;
}

}  // namespace shardwise
