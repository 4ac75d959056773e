#include "runtime/rules/op_info.h"

#include <algorithm>
#include <vector>

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

/// The role of argument `arg` of operator `op`.
OperandRole operand_role(std::string_view op, std::string_view arg) {
  const auto* found = std::ranges::find_if(kStatements, [&](const Statement& statement) {
    return statement.arg == arg && op.find(statement.in) != std::string_view::npos;
  });
  return found == std::end(kStatements) ? OperandRole::kValue : found->role;
}

bool is_number(const c10::TypePtr& type) {
  if (const auto* optional = type->castRaw<c10::OptionalType>()) return is_number(optional->getElementType());
  if (const auto* list = type->castRaw<c10::ListType>())
    return list->getElementType()->kind() == c10::TypeKind::NumberType;
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

}  // namespace

OpInfo::OpInfo(c10::OperatorHandle op) : handle(std::move(op)) {
  const auto& schema = handle.schema();
  name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    args.push_back({is_number(argument.real_type()), alias && alias->isWrite(), alias && !alias->isWrite(),
                    operand_role(name, argument.name())});
    writes |= args.back().is_written;
  }
  size_t next_written = 0;
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    int source = -1;
    if (alias && alias->isWrite()) {
      while (next_written < args.size() && !args[next_written].is_written) ++next_written;
      source = static_cast<int>(next_written++);
    }
    is_view |= alias && !alias->isWrite();
    returned_arg.push_back(source);
  }
}

size_t OpInfo::arg_index(std::string_view wanted) const {
  auto index = handle.schema().argumentIndexWithName(wanted);
  TORCH_INTERNAL_ASSERT(index, name, " has no argument ", wanted);
  return static_cast<size_t>(*index);
}

std::optional<c10::OperatorHandle> find_operator(std::string_view name) {
  const size_t dot = name.find('.', name.find("::") + 2);
  const bool has_overload = dot != std::string_view::npos;
  return c10::Dispatcher::singleton().findSchema(
      {std::string(name.substr(0, dot)), std::string(has_overload ? name.substr(dot + 1) : "")});
}

c10::ArrayRef<AtenOperator> aten_operators() {
  static const auto& operators = *[] {
    auto* result = new std::vector<AtenOperator>;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      if (auto op = dispatcher.findSchema(name))
        result->push_back(
            {std::move(*op), name.overload_name.empty() ? name.name : name.name + "." + name.overload_name});
    }
    std::ranges::sort(*result, {}, &AtenOperator::name);
    return result;
  }();
  return operators;
}

c10::ArrayRef<AtenOperator> overloads_of(std::string_view name) {
  // All overloads are adjacent: "aten::add" and "aten::add.Tensor" sort before longer names that begin with it, because '.' sorts before
  // letters, digits and '_'.
  const auto all = aten_operators();
  const auto* begin = std::ranges::lower_bound(all, name, {}, &AtenOperator::name);
  const auto* end = begin;
  while (end != all.end() && end->handle.schema().name() == name) ++end;
  return {begin, end};
}

}  // namespace shardwise
