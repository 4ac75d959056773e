// runtime/dispatch/dispatch.h: the path of an operator in C++: key, cached decision, local kernel, wrapping.
//
//   op + specs + the scalars that matter -> DecisionCache -> { move these inputs, call with these pieces, wrap with these specs }
#pragma once

#include "runtime/rules/rule.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Runs one call whose arguments are on `stack`, and leaves its results there.
/// A 0-dim tensor on another mesh than the other operands is sent to their mesh; lists are processed mesh by mesh.
/// Throws, alike on every rank: c10::ValueError where check_plain() does, c10::Error for operands with dims on different meshes, and the errors of
/// the dense operator.
void dispatch(const OpInfo& op, torch::jit::Stack* stack);

/// Registers dispatch() for every operator of aten that is not composite or has a rule, the fallback for other namespaces, detach(), and a
/// fallthrough for autograd if it has none. Called once. A kernel that was registered earlier stays; one that is registered later
/// replaces the default (registrations.h).
void register_dispatch();

/// Adds `rule` for an operator of another library, or for one of aten that has none. May be called at any time; later calls use the rule.
/// Throws: c10::ValueError for an operator that torch does not know or that has a rule.
void add_user_rule(const std::string& op, const Rule& rule);

}  // namespace shardwise
