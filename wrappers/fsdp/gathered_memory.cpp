#include "wrappers/fsdp/gathered_memory.h"

#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>

namespace shardwise {
namespace {

constexpr const char* kNotGathered =
    "[fully_shard] a whole parameter is read while it is not gathered: outside the forward of its module, or in a "
    "backward that did not pass through the module's outputs. Call module.unshard() first, or keep it with "
    "reshard_after_forward=False.";

}  // namespace

void allocate_storage(c10::StorageImpl& storage) {
  const auto allow_reads = [](auto& each) {
    if constexpr (requires { each.clear_data_ptr_access_error_msg_(); }) each.clear_data_ptr_access_error_msg_();
  };
  allow_reads(storage);
  storage.set_data_ptr_noswap(c10::GetAllocator(storage.device_type())->allocate(storage.nbytes()));
}

bool release_storage(c10::StorageImpl& storage) {
  return [](auto& each) {
    if constexpr (requires { each.clear_data_ptr_access_error_msg_(); }) {  // since torch 2.12
      each.set_data_ptr_noswap(c10::DataPtr(nullptr, each.device()));
      each.release_data_and_set_meta_custom_data_ptr_error_msg_(kNotGathered);
      return true;
    }
    return false;
  }(storage);
}

GatheredMemory::GatheredMemory(c10::Device device)
    : memory_(at::empty({0}, at::TensorOptions(at::kByte).device(device)).storage()) {}

void GatheredMemory::add(std::vector<GatheredLayout> layouts) {
  slices_.clear();
  for (GatheredLayout& layout : layouts) {
    offsets_.push_back(n_bytes_);
    n_bytes_ += aligned(c10::multiply_integers(layout.sizes) * c10::elementSize(layout.dtype));
    layouts_.push_back(std::move(layout));
  }
  memory_.set_nbytes(n_bytes_);
  has_memory_ = true;
  allocate_storage(*memory_.unsafeGetStorageImpl());
  while (wholes_.size() < layouts_.size()) {  // set_() needs memory
    const GatheredLayout& layout = layouts_[wholes_.size()];
    const auto offset = static_cast<int64_t>(offsets_[wholes_.size()] / c10::elementSize(layout.dtype));
    wholes_.push_back(at::empty({0}, at::TensorOptions(layout.dtype).device(device()))
                          .set_(memory_, offset, layout.sizes, layout.strides));
  }
  has_memory_ = !release_storage(*memory_.unsafeGetStorageImpl());
}

at::Tensor GatheredMemory::tensor(size_t number) const {
  const BelowAutograd guard;  // no view for autograd
  return at::alias(wholes_[number]);
}

ShardRange GatheredMemory::members(const Group& ranks) const {
  return has_slices() ? ShardRange{ranks.index / n_slices_ * n_slices_, n_slices_} : ShardRange{0, ranks.size()};
}

at::Tensor GatheredMemory::part_from(const Group& ranks, int64_t member, size_t number) const {
  const Split& split = layouts_[number].split;
  return has_slices() ? split.slice(wholes_[number], member - members(ranks).begin, n_slices_)
                      : split.part(wholes_[number], member);
}

void GatheredMemory::start(const Group& ranks, const std::vector<Gather>& gathers) {
  const auto messages = std::make_shared<PackedMessages>(gathers[0].memory.device());
  for (const auto& [memory, own] : gathers) {
    if (!memory.has_memory_) allocate_storage(*memory.memory_.unsafeGetStorageImpl());
    memory.has_memory_ = true;
    memory.messages_ = messages;
    const auto [begin, n] = memory.members(ranks);
    for (int64_t member = begin; member < begin + n; ++member) {
      if (member == ranks.index) continue;
      for (size_t number = 0; number < memory.size(); ++number) {
        if (!memory.layouts_[number].split.is_sharded) continue;
        messages->receive(ranks.ranks[member], memory.part_from(ranks, member, number));
        messages->send(ranks.ranks[member], own[number]);
      }
    }
  }
  if (ranks.size() > 1) messages->start(ranks, /*by_all=*/true, [] { return "all_gather"; });
  for (const auto& [memory, own] : gathers)
    for (size_t number = 0; number < memory.size(); ++number)
      memory.part_from(ranks, ranks.index, number).copy_(own[number]);
}

void GatheredMemory::finish() {
  if (const auto messages = std::move(messages_)) messages->finish();
}

void GatheredMemory::release() {
  finish();
  has_memory_ = !release_storage(*memory_.unsafeGetStorageImpl());
}

void GatheredMemory::keep_slices(const Group& ranks, int64_t n_ranks) {
  if (has_slices() && n_slices_ == n_ranks) return;
  n_slices_ = n_ranks;
  slices_.clear();
  for (size_t number = 0; number < size(); ++number)
    slices_.push_back(layouts_[number]
                          .split.slice(wholes_[number], ranks.index % n_ranks, n_ranks)
                          .clone(at::MemoryFormat::Contiguous));
}

}  // namespace shardwise
