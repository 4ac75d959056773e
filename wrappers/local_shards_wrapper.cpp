#include "wrappers/local_shards_wrapper.h"

#include "placements/tiling.h"
#include "text/check.h"

#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::string in_brackets(c10::IntArrayRef numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

void check_shard(const at::Tensor& shard, const Dims& offsets, size_t i, const at::Tensor& first) {
  SW_CHECK_TYPE(shard.defined() && !is_dtensor(shard) && !is_local_shards(shard),
                "[LocalShardsWrapper] local_shards[{}] is no plain torch.Tensor. Give this rank's own pieces.", i);
  SW_CHECK_VALUE(
      shard.dim() > 0,
      "[LocalShardsWrapper] local_shards[{}] has no dims, so nothing to shard. Give pieces of at least 1 dim.", i);
  SW_CHECK_VALUE(
      static_cast<int64_t>(offsets.size()) == shard.dim(),
      "[LocalShardsWrapper] offsets[{}] {} has {} entries, the piece of shape {} has {} dims. Give one per dim.", i,
      in_brackets(offsets), offsets.size(), in_brackets(shard.sizes()), shard.dim());
  for (int64_t offset : offsets)
    SW_CHECK_VALUE(offset >= 0,
                   "[LocalShardsWrapper] offsets[{}] {} hold a negative number: they count from the table's first "
                   "element. Use numbers of at least 0.",
                   i, in_brackets(offsets));
  SW_CHECK_VALUE(
      shard.dim() == first.dim() && shard.scalar_type() == first.scalar_type() && shard.device() == first.device(),
      "[LocalShardsWrapper] local_shards[{}] is {} of shape {} on {}, local_shards[0] {} of shape {} on {}: they are "
      "pieces of one table. Use one dtype, device and number of dims.",
      i, c10::toString(shard.scalar_type()), in_brackets(shard.sizes()), shard.device().str(),
      c10::toString(first.scalar_type()), in_brackets(first.sizes()), first.device().str());
}

void check_shards(const std::vector<at::Tensor>& shards, const std::vector<Dims>& offsets) {
  SW_CHECK_VALUE(shards.size() == offsets.size(),
                 "[LocalShardsWrapper] got {} local_shards and {} offsets: there is one of each per piece. Give lists "
                 "of one length.",
                 shards.size(), offsets.size());
  for (size_t i = 0; i < shards.size(); ++i) check_shard(shards[i], offsets[i], i, shards[0]);
  const std::vector<Box> boxes = boxes_of_shards(shards, offsets);
  if (const auto overlap = find_overlap(boxes))
    SW_CHECK_VALUE(false,
                   "[LocalShardsWrapper] local_shards[{}] {} and local_shards[{}] {} overlap in {}: each element "
                   "belongs to one piece. Make them disjoint.",
                   overlap->first, to_string(boxes[overlap->first]), overlap->second, to_string(boxes[overlap->second]),
                   to_string(intersect(boxes[overlap->first], boxes[overlap->second])));
}

/// Pieces that require gradients get them from the wrapper's gradient.
struct MakeShards : torch::autograd::Function<MakeShards> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList shards, const std::vector<Dims>& offsets) {
    ctx->saved_data["n_shards"] = static_cast<int64_t>(shards.size());
    std::vector<at::Tensor> detached = c10::fmap(shards, [&](const at::Tensor& shard) { return shard.detach(); });
    return wrap_local_shards(std::move(detached), offsets, {}, 0);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result;
    if (grads[0].defined()) result = local_shards(grads[0]);
    result.resize(ctx->saved_data["n_shards"].toInt() + 1);  // nothing for the offsets
    return result;
  }
};

struct TakeShards : torch::autograd::Function<TakeShards> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& wrapper) {
    ctx->save_for_backward({wrapper.detach()});
    variable_list shards;
    for (const at::Tensor& shard : maybe_local_shards(wrapper)->shards()) shards.push_back(shard.detach());
    return shards;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto* wrapper = maybe_local_shards(ctx->get_saved_variables()[0]);
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = at::zeros_like(wrapper->shards()[i]);
    return {make_local_shards(grads, wrapper->offsets())};
  }
};

const LocalShardsImpl& impl_of(const at::Tensor& tensor) {
  const auto* impl = maybe_local_shards(tensor);
  TORCH_CHECK_TYPE(impl,
                   "[LocalShardsWrapper] got another tensor where a wrapper is needed. Make one with "
                   "LocalShardsWrapper(local_shards=, offsets=).");
  return *impl;
}

}  // namespace

at::Tensor make_local_shards(std::vector<at::Tensor> shards, std::vector<Dims> offsets,
                             const at::TensorOptions& options, int64_t n_dims) {
  check_shards(shards, offsets);
  if (std::ranges::any_of(shards, records)) return MakeShards::apply(at::TensorList(shards), offsets);
  return wrap_local_shards(std::move(shards), std::move(offsets), options, n_dims);
}

std::vector<at::Tensor> local_shards(const at::Tensor& wrapper) {
  const auto& shards = impl_of(wrapper).shards();
  return records(wrapper) && !shards.empty() ? TakeShards::apply(wrapper) : shards;
}

std::vector<Dims> local_sizes(const at::Tensor& wrapper) {
  std::vector<Dims> sizes;
  for (const at::Tensor& shard : impl_of(wrapper).shards()) sizes.emplace_back(shard.sizes());
  return sizes;
}

std::vector<Dims> local_offsets(const at::Tensor& wrapper) { return impl_of(wrapper).offsets(); }

}  // namespace shardwise
