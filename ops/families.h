// ops/families.h: the operator families: a function and a file each, by folder; README.md says how to add an operator.
#pragma once

#include "runtime/rules/rule.h"

namespace shardwise {

// elementwise/
void register_activations(RuleTable& table);
void register_copies(RuleTable& table);
void register_factories(RuleTable& table);
void register_foreach(RuleTable& table);
void register_pointwise(RuleTable& table);
void register_item(RuleTable& table);
void register_loss_scaling();

// products/
void register_attention();
void register_attention_operators();
void register_distances(RuleTable& table);
void register_fused_attention(RuleTable& table);
void register_grouped_mm(RuleTable& table);
void register_inference_layers();
void register_linalg(RuleTable& table);
void register_linear(RuleTable& table);
void register_matmul(RuleTable& table);
void register_transforms(RuleTable& table);
void register_weight_grad(RuleTable& table);

// reductions/
void register_losses(RuleTable& table);
void register_nll(RuleTable& table);
void register_var_argmax(RuleTable& table);
void register_reductions(RuleTable& table);
void register_scans(RuleTable& table);
void register_softmax(RuleTable& table);

// norms/
void register_batch_norm();
void register_group_norm(RuleTable& table);
void register_layer_norm(RuleTable& table);

// shapes/
void register_cat(RuleTable& table);
void register_diagonals(RuleTable& table);
void register_permutations(RuleTable& table);
void register_flip_roll_repeat(RuleTable& table);
void register_slices(RuleTable& table);
void register_slice_writes();
void register_view_copies(RuleTable& table);
void register_views(RuleTable& table);

// indexing/
void register_gather(RuleTable& table);
void register_index(RuleTable& table);
void register_index_along();
void register_masks();
void register_search(RuleTable& table);
void register_selection_grad();
void register_sorting(RuleTable& table);
void register_quantile();

// spatial/
void register_convolution(RuleTable& table);
void register_interpolation(RuleTable& table);
void register_padding(RuleTable& table);
void register_patches(RuleTable& table);
void register_pooling(RuleTable& table);

// random/
void register_dropout(RuleTable& table);
void register_random();
void register_random_values(RuleTable& table);

// across the folders
void register_operand_roles();
void register_hot();
void register_plain_gradients();

}  // namespace shardwise
