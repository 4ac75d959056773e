// runtime/rules/operand_role.h: what a tensor argument is for, which torch's schemas say by its name alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace shardwise {

/// It decides whether a plain tensor may stand there next to distributed ones.
enum class OperandRole : uint8_t {
  kValue,      // no
  kPositions,  // indices: a plain one counts as replicated
  kSelection,  // a mask, or counts: likewise
  kBatch,      // ids, and bags and weights of ids: data, which differ between the ranks of a data-parallel program: no
  kInitialState,  // a recurrent layer's: no, and the error says more
};

/// States the role of the arguments of these names; `in`: only of operators whose name contains this word, which takes precedence over statements without it.
/// Called while the library loads, before any OpInfo is made.
void set_operand_role(OperandRole role, std::initializer_list<std::string_view> args, std::string_view in = "");

/// The role of argument `arg` of operator `op`.
OperandRole operand_role(std::string_view op, std::string_view arg);

}  // namespace shardwise
