// runtime/dispatch/copied_view.h: a view whose values had to be moved, so that its memory is not its source's.
//
//   at::Tensor row = table[3];   // on one rank the row, on all others a copy of it
//   row.fill_(0);                // is brought back: table's row 3 is 0
//   table.fill_(1);              // is seen: the next operator on row fetches it again
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/view_link.h"

#include <ATen/core/stack.h>

#include <atomic>

namespace shardwise {

/// How a view's values come from its source: the call that made it, with the source where the call had it.
class CopiedView final : public ViewLink {
 public:
  /// What parts the view from its source's memory. Only kMoved communicates, and it is the same on all ranks; which of the others
  /// a view is, and whether it is one at all, may differ from rank to rank.
  enum class Kind : uint8_t {
    kMoved,   // values came from other ranks
    kCopied,  // pieces were reshaped, and their strides did not allow a view
    kShared,  // shares memory with a source that is itself a copied view
  };

  /// `args`: the arguments of the view operator `op` on distributed tensors; `output`: which of its results this is.
  CopiedView(Kind kind, const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t output = 0);

  bool is_stale() const override;
  bool needs_other_ranks() const override;
  void refresh(const SpecPtr& spec, const Shards& shards) override;
  /// Cost: moves the view; where the view does not cover its source, gathers the source too.
  void write_back(const DTensorImpl& view) override;
  void set_current() override;

 private:
  const DTensorImpl& source_impl() const { return *maybe_dtensor(*source_); }
  bool covers(const Spec& spec) const;
  void fetch(const SpecPtr& spec, const Shards& shards) const;
  void bring(const SpecPtr& spec, const Shards& shards);
  /// The view of `source`, plain or distributed.
  at::Tensor view_of(const at::Tensor& source) const;

  const Kind kind_;
  const OpInfo& op_;
  torch::jit::Stack args_;
  size_t source_arg_ = 0;
  size_t output_;
  std::optional<at::Tensor> source_;
  TensorMemoryPtr memory_;          // the source's, and the view's own: an operator on either counts
  std::atomic<uint64_t> n_writes_;  // when the values were last fetched, or brought back
};

/// To be called after an operator wrote to `written`: its source follows, where it is a copied view. Collective over the source's mesh.
void after_write(const DTensorImpl& written);

}  // namespace shardwise
