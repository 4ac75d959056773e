#include "ops/register.h"

#include "ops/families.h"
#include "runtime/dispatch.h"

namespace shardwise {

void register_operators() {
  auto& table = RuleTable::global();
  register_pointwise(table);
  register_matmul(table);
  register_dispatch();
}

namespace {
[[maybe_unused]] const bool registered = (register_operators(), true);
}

}  // namespace shardwise
