#include "runtime/rules/operand_role.h"

#include <algorithm>
#include <string>
#include <vector>

namespace shardwise {
namespace {

struct Statement {
  std::string arg;
  std::string in;  // a part of the operator's name, or "" for all operators
  OperandRole role;
};

std::vector<Statement>& statements() {
  static auto* all = new std::vector<Statement>;
  return *all;
}

}  // namespace

void set_operand_role(OperandRole role, std::initializer_list<std::string_view> args, std::string_view in) {
  auto& all = statements();
  for (std::string_view arg : args)
    all.insert(in.empty() ? all.end() : all.begin(), {std::string(arg), std::string(in), role});
}

OperandRole operand_role(std::string_view op, std::string_view arg) {
  const auto found = std::ranges::find_if(statements(), [&](const Statement& statement) {
    return statement.arg == arg && op.find(statement.in) != std::string_view::npos;
  });
  return found == statements().end() ? OperandRole::kValue : found->role;
}

}  // namespace shardwise
