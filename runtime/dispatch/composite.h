// runtime/dispatch/composite.h: operators that torch composes of others.
//
// Their parts find their own rules. In between torch makes plain tensors from the shapes at hand (a range, a mask, an empty result);
// those count as replicated there.
#pragma once

namespace shardwise {

/// Registers composite operators of aten that have neither rule nor kernel of ours: torch's composition runs under
/// ImplicitReplication, after a look at what the caller gave (a plain tensor of his is an error, as ever), and results that came
/// out plain are wrapped as replicas. Called after register_dispatch().
void register_composites();

}  // namespace shardwise
