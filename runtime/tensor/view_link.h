// runtime/tensor/view_link.h: how a view whose memory is not its source's stays a view.
#pragma once

#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

namespace shardwise {

class DTensorImpl;

/// Held by the view. Its one implementation is CopiedView (runtime/dispatch/copied_view.h), which knows operators.
class ViewLink {
 public:
  virtual ~ViewLink() = default;
  /// True where an operator wrote to the source since the values were last fetched: the same on all ranks. Cost: a read.
  virtual bool is_stale() const = 0;
  /// True where refresh() would need other ranks.
  virtual bool needs_other_ranks() const = 0;
  /// Fetches the values again, into the memory of `shards`, if they are stale. Collective over the source's mesh where it needs other
  /// ranks. Of several threads one fetches, and the others wait.
  virtual void refresh(const SpecPtr& spec, const Shards& shards) = 0;
  /// The values are those of now, and so are the source's: the write that was just counted was the view's own.
  virtual void set_current() = 0;
  /// Copies the values of `view`, which holds this and was written to, into the source, and on into the source's own source. Collective.
  virtual void write_back(const DTensorImpl& view) = 0;
};

}  // namespace shardwise
