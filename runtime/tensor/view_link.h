// runtime/tensor/view_link.h: the link that keeps a view up to date if it does not share its source's memory.
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

class DTensorImpl;

/// Held by the view. The only implementation is CopiedView (runtime/dispatch/copied_view.h), which knows operators.
class ViewLink {
 public:
  virtual ~ViewLink() = default;
  /// True if an operator has written to the source since the values were last fetched. Equal on all ranks. Cost: a read.
  virtual bool is_stale() const = 0;
  /// True if refresh() would need other ranks.
  virtual bool needs_other_ranks() const = 0;
  /// Fetches the values again, into the memory of `shards`, if they are stale. Collective over the source's mesh if it needs other ranks.
  /// If several threads call it, one fetches and the others wait.
  virtual void refresh(const SpecPtr& spec, const Shards& shards) = 0;
  /// Marks the view and its source as up to date: the write that was just counted was the view's own.
  virtual void set_current() = 0;
  /// Copies the values of `view`, which holds this link and was written to, to the source, and from there to the source's own source.
  /// Collective.
  virtual void write_back(const DTensorImpl& view) = 0;
};

}  // namespace shardwise
