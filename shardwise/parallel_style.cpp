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

/// The whole size of the dim that a plain input is sharded along, if a linear layer knows it: its features.
std::optional<int64_t> known_size(const LinearImpl& linear, const Placement& of_plain) {
  return of_plain.is_alike(Placement::shard(-1)) ? std::optional(linear.options.in_features()) : std::nullopt;
}

std::vector<ValueLayout> value_layouts(const char* style, const MaybeLayouts& given, const MaybeLayouts& wanted) {
  TORCH_CHECK_VALUE(
      given.size() == wanted.size(),
      fmt::format(
          "[{}] got {} layouts and {} desired layouts. Give one per value, and nullopt for values to leave unchanged.",
          style, given.size(), wanted.size()));
  std::vector<ValueLayout> result;
  for (size_t i = 0; i < given.size(); ++i) result.push_back({given[i], given[i] ? wanted[i] : std::nullopt, {}});
  return result;
}

}  // namespace

ModuleLayouts ColwiseParallel::operator()(const Module& module) const {
  return layouts("ColwiseParallel", module, 0, Shard(0), Replicate(), Shard(-1));
}

ModuleLayouts RowwiseParallel::operator()(const Module& module) const {
  const bool has_features = dynamic_cast<const LinearImpl*>(&module);
  return layouts("RowwiseParallel", module, 1, Replicate(), has_features ? Shard(-1) : Replicate(), Replicate());
}

template <class Self>
ModuleLayouts LayerStyle<Self>::layouts(const char* style, const Module& module, int64_t weight_dim,
                                        const Placement& bias, const Placement& needed, const Placement& output) const {
  const auto* const linear = dynamic_cast<const LinearImpl*>(&module);
  if (!linear && !dynamic_cast<const EmbeddingImpl*>(&module)) refuse(style, module);
  const Placement of_plain = input_.value_or(needed);
  ModuleLayouts result;
  result.parameters = {{"weight", Shard(linear ? weight_dim : 1 - weight_dim)}};
  if (linear && linear->bias.defined()) result.parameters.emplace_back("bias", bias);
  result.inputs = {{of_plain, needed, linear ? known_size(*linear, of_plain) : std::nullopt}};
  result.outputs = {{{}, output_.value_or(output), {}}};
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

template class PrepareModule<true>;
template class PrepareModule<false>;

}  // namespace shardwise
