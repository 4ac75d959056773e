// ops/families.h: the operator families, one function and one file each.
#pragma once

#include "runtime/rule.h"

namespace torch {
class Library;
}

namespace shardwise {

void register_pointwise(RuleTable& table);
void register_activations(RuleTable& table);
void register_reductions(RuleTable& table);
void register_normalization(RuleTable& table);
void register_cat(RuleTable& table);
void register_factories(RuleTable& table);
void register_copies(RuleTable& table);
void register_foreach(RuleTable& table);
void register_matmul(RuleTable& table);
void register_linear(RuleTable& table);
void register_weight_grad(RuleTable& table);
void register_embedding();
void register_views(RuleTable& table);
void register_permutations(RuleTable& table);
void register_slices(RuleTable& table);
void register_attention();
void register_values(RuleTable& table);
void register_selection_grad();
void register_gather(RuleTable& table);
void register_index(RuleTable& table);
void register_index_along();
void register_masks();
void register_search(RuleTable& table);
void register_slice_writes();
void register_embedding_bag();

}  // namespace shardwise
