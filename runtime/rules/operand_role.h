// runtime/rules/operand_role.h: the role of a tensor argument, which torch's schemas only express by its name.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardwise {

/// Whether a plain tensor may be used for the argument next to distributed ones.
enum class OperandRole : uint8_t {
  kValue,         // no
  kPositions,     // indices: a plain one counts as replicated
  kSelection,     // a mask, or counts: counts as replicated too
  kBatch,         // ids, and bags and weights of ids: data that differs between data-parallel ranks: no
  kInitialState,  // of a recurrent layer: no, and the error explains more
};

/// The role of argument `arg` of operator `op`.
OperandRole operand_role(std::string_view op, std::string_view arg);

}  // namespace shardwise
