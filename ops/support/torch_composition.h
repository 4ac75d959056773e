// ops/support/torch_composition.h: operators that torch composes of other operators, below autograd.
#pragma once

#include <initializer_list>

namespace shardwise {

/// Implements each of these operators ("rot90") by torch's own composition (its CompositeExplicitAutograd kernel). Its parts have rules or kernels of
/// ours, and torch's derivative formula stays. Not for compositions that read a tensor's memory or make plain tensors.
void add_torch_compositions(std::initializer_list<const char*> ops);

}  // namespace shardwise
