#include "runtime/tensor/reduced_value.h"

#include "runtime/tensor/write_count.h"

#include <fmt/format.h>

namespace shardwise {

ReducedValue::ReducedValue(const DTensorImpl& partial, at::Tensor tensor, uint32_t write_count)
    : tensor_(std::move(tensor)),
      write_count_(write_count),
      watch_(partial, [is_stale = is_stale_] { is_stale->store(true, std::memory_order_relaxed); }) {}

bool ReducedValue::is_of(const DTensorImpl& partial) const {
  if (is_stale_->load(std::memory_order_relaxed)) return false;
  TORCH_CHECK_VALUE(
      write_count_ == write_count(partial),
      fmt::format(
          "[to_local] the local piece of a tensor placed as {} was written to after an operator had reduced that "
          "tensor, which other ranks do not know. Write by operators on the DTensor, as x.add_(1), or make a "
          "new one of the piece: DTensor.from_local(piece, mesh, placements).",
          to_string(partial.spec()->placements())));
  return true;
}

}  // namespace shardwise
