// wrappers/local_shards_dispatch.h: operators on wrappers run on each piece, all in C++.
#pragma once

namespace shardwise {

/// Registers the wrappers' kernel for every operator of aten that is not composite, and a fallback for other namespaces.
///
/// An operator runs by piece if its rule says that it may run box by box (runtime/rules/rule.h): pointwise operators, casts, copies, and lists of
/// them. Also supported: factories and views of the wrapper's own sizes, detach, and equal (which compares offsets too).
/// Throws, at the call: c10::NotImplementedError for any other operator, c10::ValueError for wrappers of differing offsets,
/// c10::TypeError for plain tensors of one or more dims and distributed ones next to a wrapper.
///
/// Called once, for the first wrapper of a program; rules are looked up at the first call of an operator.
void register_local_shards();

}  // namespace shardwise
