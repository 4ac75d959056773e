#include "runtime/rules/op_info.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

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

}  // namespace shardwise
