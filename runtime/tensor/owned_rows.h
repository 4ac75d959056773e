// runtime/tensor/owned_rows.h: Partial sums in which each row has a single owner.
#pragma once

#include "runtime/tensor/spec.h"

#include <atomic>
#include <optional>
#include <utility>

namespace shardwise {

/// The owners of the rows of a Partial(sum) tensor. Each row is zero on all ranks but its owner, so a move sends each row from its owner to
/// the ranks that lack it, without a reduction. Shared by all tensors of the same memory. A write by an operator to any of them ends the
/// ownership, alike on all ranks. The only implementation is LookupTerms (ops/embedding/lookup_terms.h).
class OwnedRows {
 public:
  explicit OwnedRows(SpecPtr spec) : spec_(std::move(spec)) {}
  virtual ~OwnedRows() = default;

  /// True for a tensor of this memory with this spec, until an operator writes there. Equal on all ranks.
  bool are_rows_of(const SpecPtr& spec) const { return spec == spec_ && !is_written_.load(std::memory_order_acquire); }
  void note_write() { is_written_.store(true, std::memory_order_release); }

  /// This rank's pieces laid out as `to`, in new memory. Nothing if `to` is Partial or has another mesh or dtype. Below autograd.
  /// Collective over the mesh's members, except if it returns nothing.
  virtual std::optional<Shards> move_as(const SpecPtr& to) const = 0;

 private:
  const SpecPtr spec_;
  std::atomic<bool> is_written_ = false;
};

}  // namespace shardwise
