#include "ops/embedding/lookup_operators.h"

#include "ops/embedding/row_optimizer.h"
#include "runtime/rules/rule.h"

namespace shardwise {
namespace {

[[maybe_unused]] const bool registered = [] {
  register_embedding(RuleTable::global());
  register_batched_embedding();
  register_embedding_bag();
  register_embedding_renorm();
  carry_optimizers();
  return true;
}();

}  // namespace

bool load_lookups() { return registered; }

}  // namespace shardwise
