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

/// The layouts that dispatch() gives the tensors among the arguments on the stack: null for one that does not move, none if operands are gathered.
/// Collective where prepare_arguments() is. Pre: the operator writes to none of them.
c10::SmallVector<SpecPtr, 8> planned_layouts(const OpInfo& op, torch::jit::Stack stack);

/// Registers dispatch() for every operator of aten that is not composite or has a rule, the fallback for other namespaces, detach(), and a
/// fallthrough for autograd if it has none. Called once. A kernel that was registered earlier stays; one that is registered later
/// replaces the default (registrations.h).
void register_dispatch();

/// Adds `rule` for an operator of another library, or for one of aten that has none. May be called at any time; later calls use the rule.
/// Throws: c10::ValueError for an operator that torch does not know or that has a rule.
void add_user_rule(const std::string& op, const Rule& rule);

/// From now on `op` uses `rule` in place of its rule, kernel or fallback. torch's derivative formula applies.
/// Throws: c10::ValueError for an operator that torch composes from others above autograd. Pre: torch knows the operator.
void replace_answer(const std::string& op, const Rule& rule);

/// Runs a call without torch's composition and returns true, or returns false and leaves the stack as it is. The answer must be the same on all ranks.
/// `mesh`: that of the distributed arguments. Plain arguments count as replicas.
using OnPieces = bool (*)(const c10::OperatorHandle& op, const MeshPtr& mesh, torch::jit::Stack& stack);

/// Registers one operator as register_composites() does. `on_pieces`: null, or tried before the composition.
void register_composite(const c10::OperatorHandle& op, OnPieces on_pieces);

/// Registers the operators that torch composes from others, for which we have neither a rule nor a kernel: the caller's plain tensors are checked as for
/// any operator, torch's composition runs under ImplicitReplication, and plain results are wrapped as replicas.
/// `without_plain`: composites that make no plain tensor ("aten::reshape"); torch's own kernel runs them, which is faster.
/// Called after register_dispatch().
void register_composites(c10::ArrayRef<std::string_view> without_plain);

/// Lets torch decompose composite operators (linear, matmul) when an operand has a tangent. torch does so for devices whose kernels do not
/// take precedence over the composition. Calls without a tangent cost nothing more.
void register_forward_mode();

}  // namespace shardwise
