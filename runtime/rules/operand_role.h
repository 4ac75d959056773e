// runtime/rules/operand_role.h: the role of a tensor argument, which torch's schemas only express by its name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace shardwise {

/// The role decides whether a plain tensor may be used for this argument next to distributed ones.
enum class OperandRole : uint8_t {
  kValue,         // no
  kPositions,     // indices: a plain one counts as replicated
  kSelection,     // a mask, or counts: counts as replicated too
  kBatch,         // ids, and bags and weights of ids: data that differs between data-parallel ranks: no
  kInitialState,  // of a recurrent layer: no, and the error explains more
};

/// Sets the role of the arguments with these names. `in`: only for operators whose name contains this text, which takes precedence over
/// roles set without it.
/// Called while the library loads, before any OpInfo is created.
void set_operand_role(OperandRole role, std::initializer_list<std::string_view> args, std::string_view in = "");

/// The role of argument `arg` of operator `op`.
OperandRole operand_role(std::string_view op, std::string_view arg);

}  // namespace shardwise
