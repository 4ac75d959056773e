#include "runtime/rules/operand_role.h"

#include <algorithm>

namespace shardwise {
namespace {

struct Statement {
  std::string_view arg;
  OperandRole role;
  std::string_view in;  // a part of the operator's name, or "" for all operators
};

/// The first one that fits holds.
constexpr Statement kStatements[] = {
    {"indices", OperandRole::kBatch, "embedding"},
    {"offsets", OperandRole::kBatch, "embedding"},
    {"per_sample_weights", OperandRole::kBatch, "embedding"},
    {"index", OperandRole::kPositions, ""},
    {"indices", OperandRole::kPositions, ""},
    {"offs", OperandRole::kPositions, ""},
    {"mask", OperandRole::kSelection, ""},
    {"condition", OperandRole::kSelection, ""},
    {"repeats", OperandRole::kSelection, ""},
    {"hx", OperandRole::kInitialState, ""},
};

}  // namespace

OperandRole operand_role(std::string_view op, std::string_view arg) {
  const auto* found = std::ranges::find_if(kStatements, [&](const Statement& statement) {
    return statement.arg == arg && op.find(statement.in) != std::string_view::npos;
  });
  return found == std::end(kStatements) ? OperandRole::kValue : found->role;
}

}  // namespace shardwise
