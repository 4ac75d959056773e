#include "ops/register.h"

#include "ops/families.h"
#include "runtime/dispatch.h"
#include "runtime/view_replay.h"

namespace shardwise {

void register_operators() {
  auto& table = RuleTable::global();
  register_pointwise(table);
  register_activations(table);
  register_reductions(table);
  register_normalization(table);
  register_cat(table);
  register_factories(table);
  register_copies(table);
  register_foreach(table);
  register_matmul(table);
  register_linear(table);
  register_embedding();
  register_views(table);
  register_permutations(table);
  register_slices(table);
  register_attention();
  register_values(table);
  register_selection_grad();
  register_gather(table);
  register_index(table);
  register_index_along();
  register_masks();
  register_slice_writes();
  register_embedding_bag();
  register_search(table);
  register_dispatch();
  register_view_replay();
}

namespace {
[[maybe_unused]] const bool registered = (register_operators(), true);
}

}  // namespace shardwise
