// runtime/tensor/below_autograd.h: the guard for computing on local pieces: below autograd, the bookkeeping of views, and autocast.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace shardwise {

/// PrivateUse2 itself must stay included. It is a backend bit of Dense, so excluding it would exclude every dense kernel.
class BelowAutograd {
 public:
  BelowAutograd() : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace shardwise
