#include "wrappers/fsdp/gradient_reduction.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace shardwise {
namespace {

c10::Device device_of(const std::vector<at::Tensor>& gradients) {
  return std::ranges::find_if(gradients, [](const at::Tensor& each) { return each.defined(); })->device();
}

}  // namespace

GradientReduction::GradientReduction(const Group& ranks, const std::vector<ShardedParameter>& parameters,
                                     std::vector<at::Tensor> gradients, const std::vector<bool>& has)
    : ranks_(ranks), parameters_(parameters), messages_(device_of(gradients)), gradients_(std::move(gradients)) {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!gradients_[i].defined()) continue;
    which_.push_back(i);
    has_.push_back(has[i]);
  }
  const at::Tensor flags = at::tensor(has_, at::TensorOptions(at::kByte)).to(device_of(gradients_));
  for (int64_t member = 0; member < ranks_.size(); ++member) {
    if (member == ranks_.index) continue;
    const int64_t rank = ranks_.ranks[member];
    for (const size_t i : which_) {
      messages_.send(rank, parameters_[i].part(gradients_[i], member));
      arrivals_.push_back(
          messages_.receive_apart(rank, parameters_[i].part_sizes(ranks_.index), gradients_[i].scalar_type()));
    }
    messages_.send(rank, flags);
    arrivals_.push_back(messages_.receive_apart(rank, flags.sizes(), at::kByte));
  }
  if (ranks_.size() > 1) messages_.start(ranks_, /*by_all=*/true, [] { return "reduce_scatter"; });
}

bool GradientReduction::has_all() const { return std::ranges::count(has_, 0) == 0; }

const at::Tensor& GradientReduction::arrived(int64_t member, size_t k) const {
  const int64_t before = member < ranks_.index ? member : member - 1;  // position among the other members
  return messages_.arrived(arrivals_[before * (which_.size() + 1) + k]);
}

std::vector<uint8_t> GradientReduction::finish(const std::vector<at::Tensor>& sums) {
  messages_.finish();
  for (int64_t member = 0; member < ranks_.size() && !sums.empty(); ++member) {
    std::vector<at::Tensor> terms;
    for (size_t k = 0; k < which_.size(); ++k)
      terms.push_back(member == ranks_.index ? parameters_[which_[k]].part(gradients_[which_[k]], member)
                                             : arrived(member, k));
    if (member == 0)
      at::_foreach_copy_(sums, terms);
    else
      at::_foreach_add_(sums, terms);
  }
  // A rank that has all gradients does not read the flags of others, which would wait for the GPU.
  for (int64_t member = 0; member < ranks_.size() && !has_all(); ++member) {
    if (member == ranks_.index || !ranks_.sends) continue;
    const at::Tensor flags = arrived(member, which_.size()).cpu();
    for (size_t k = 0; k < which_.size(); ++k) has_[k] |= flags.const_data_ptr<uint8_t>()[k];
  }
  gradients_.clear();
  return has_;
}

}  // namespace shardwise
