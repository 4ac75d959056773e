// runtime/tensor/owned_rows.h: terms of a sum in which each row has one owner.
#pragma once

#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

#include <atomic>
#include <optional>
#include <utility>

namespace shardwise {

/// Which rank has which rows of a Partial(sum) tensor; each row is zero on all other ranks. A move so sends each row from its owner to the
/// ranks that lack it, and sums nothing. Shared by all tensors of that memory; a write by an operator to any of them ends it, on all ranks
/// alike. Its one implementation is LookupTerms (ops/embedding/lookup_terms.h).
class OwnedRows {
 public:
  explicit OwnedRows(SpecPtr spec) : spec_(std::move(spec)) {}
  virtual ~OwnedRows() = default;

  /// True for a tensor of this memory with this spec, until an operator writes there. The same on all ranks.
  bool are_rows_of(const SpecPtr& spec) const { return spec == spec_ && !is_written_.load(std::memory_order_acquire); }
  void note_write() { is_written_.store(true, std::memory_order_release); }

  /// This rank's pieces laid out as `to`, in new memory; none where `to` wants terms of a sum, another mesh or another dtype. Below autograd.
  /// Collective over the mesh's members unless there are none.
  virtual std::optional<Shards> move_as(const SpecPtr& to) const = 0;

 private:
  const SpecPtr spec_;
  std::atomic<bool> is_written_ = false;
};

}  // namespace shardwise
