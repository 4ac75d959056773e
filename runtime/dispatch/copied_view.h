// runtime/dispatch/copied_view.h: a view whose values had to be moved, so that it does not share its source's memory.
//
//   at::Tensor row = table[3];   // a view on the rank that owns the row, a copy on all others
//   row.fill_(0);                // is copied back: table's row 3 is 0
//   table.fill_(1);              // is noticed: the next operator on row fetches it again
#pragma once

#include "runtime/dispatch/view_call.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/view_link.h"

#include <atomic>

namespace shardwise {

/// How a view gets its values from its source: the call that made it, with the source as it was in the call.
class CopiedView final : public ViewLink {
 public:
  /// The reason why the view does not share its source's memory. Only kMoved communicates, and all ranks agree on it. Whether a view is one
  /// for another reason, or a copied view at all, may differ between ranks.
  enum class Reason : uint8_t {
    kMoved,   // values came from other ranks
    kCopied,  // pieces were reshaped, and their strides did not allow a view
    kShared,  // shares memory with a source that is itself a copied view
  };

  /// `args`: the arguments of the view operator `op` on distributed tensors; `output`: the index of this view among its results.
  CopiedView(Reason reason, const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t output = 0);

  bool is_stale() const override;
  bool needs_other_ranks() const override;
  void refresh(const SpecPtr& spec, const Shards& shards) override;
  /// Cost: moves the view; if the view does not cover its source, gathers the source too.
  void write_back(const DTensorImpl& view) override;
  void set_current() override;

 private:
  const DTensorImpl& source_impl() const { return *maybe_dtensor(*source_); }
  bool covers(const Spec& spec) const;
  void fetch(const SpecPtr& spec, const Shards& shards) const;
  void bring(const SpecPtr& spec, const Shards& shards);

  const Reason reason_;
  const ViewCall call_;
  std::optional<at::Tensor> source_;
  TensorMemoryPtr memory_;          // of the source and this view: a write to either one counts
  std::atomic<uint64_t> n_writes_;  // when the values were last fetched or copied back
};

/// Call this after an operator wrote to `written`. If that is a copied view, the write is copied to its source. Collective over the
/// source's mesh.
void after_write(const DTensorImpl& written);

}  // namespace shardwise
