// runtime/tensor/below_autograd.h: the guard under which local pieces are computed: below autograd, views' bookkeeping and autocast.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace shardwise {

/// PrivateUse2 itself must stay included: it is a backend bit of Dense, and excluding it excludes every dense kernel.
class BelowAutograd {
 public:
  BelowAutograd() : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace shardwise
