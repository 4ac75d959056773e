// ops/support/torch_composition.h: operators that torch composes of others, below autograd.
#pragma once

#include <initializer_list>

namespace shardwise {

/// Answers each of these operators ("rot90") as torch composes it (its CompositeExplicitAutograd kernel): the parts have
/// answers, and torch's derivative formula stays. Not for compositions that read a tensor's memory or make plain tensors.
void add_torch_compositions(std::initializer_list<const char*> ops);

}  // namespace shardwise
