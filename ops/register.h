// ops/register.h: every operator family of the core, registered once.
#pragma once

namespace shardwise {

/// Fills the rule table, registers our own kernels and then dispatch itself. Done when the library loads.
void register_operators();

}  // namespace shardwise
