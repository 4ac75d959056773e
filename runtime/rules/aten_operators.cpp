#include "runtime/rules/aten_operators.h"

#include <algorithm>
#include <vector>

namespace shardwise {

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
