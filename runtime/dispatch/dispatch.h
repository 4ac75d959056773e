// runtime/dispatch/dispatch.h: the path of an operator: key, cached decision, local kernel, wrap. All of it C++.
//
//   op + specs + the scalars that matter -> DecisionCache -> { move these inputs, call with these pieces, wrap with these specs }
#pragma once

#include "runtime/rules/rule.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Answers one call whose arguments lie on `stack`, leaving its results there.
/// A 0-dim tensor on another mesh than the others is sent to theirs; lists are answered mesh by mesh.
/// Throws: c10::ValueError where check_plain() does and for operands with dims on different meshes, and whatever the dense operator
/// throws; the same on every rank.
void dispatch(const OpInfo& op, torch::jit::Stack* stack);

/// Registers dispatch() for every operator of aten that is not composite or has a rule, the fallback for other namespaces and
/// what autograd lacks. Called once, after the rules and the kernels of ops/ are registered.
void register_dispatch();

/// States `rule` for an operator that another library registered, or one of aten's that has none. At any time: later calls use it.
/// Throws: c10::ValueError for an operator that torch does not know or that has a rule.
void add_user_rule(const std::string& op, const Rule& rule);

}  // namespace shardwise
