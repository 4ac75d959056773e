// ops/register.cpp: registers every operator family once, when the library loads.
#include "ops/families.h"
#include "ops/sparse/sparse.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/tensor/sparse.h"

namespace shardwise {
namespace {

/// Compositions that make no plain tensor between their parts. They read only the type or shape of an argument, or take one tensor only.
constexpr std::string_view kCompositesWithoutPlain[] = {
    "aten::type_as", "aten::expand_as",  "aten::view_as", "aten::reshape_as", "aten::to",
    "aten::reshape", "aten::flatten",    "aten::chunk",   "aten::contiguous", "aten::softmax",
    "aten::dropout", "aten::layer_norm", "aten::square"};

/// Fills the rule table, registers our own kernels and then dispatch itself.
void register_operators() {
  register_operand_roles();
  auto& table = RuleTable::global();
  register_pointwise(table);
  register_activations(table);
  register_reductions(table);
  register_softmax(table);
  register_losses(table);
  register_nll(table);
  register_linalg(table);
  register_transforms(table);
  register_var_argmax(table);
  register_layer_norm(table);
  register_batch_norm();
  register_group_norm(table);
  register_convolution(table);
  register_pooling(table);
  register_interpolation(table);
  register_padding(table);
  register_patches(table);
  register_distances(table);
  register_grouped_mm(table);
  register_cat(table);
  register_factories(table);
  register_copies(table);
  register_foreach(table);
  register_loss_scaling();
  register_matmul(table);
  register_linear(table);
  register_views(table);
  register_permutations(table);
  register_slices(table);
  register_attention();
  register_attention_operators();
  register_fused_attention(table);
  register_inference_layers();
  register_item(table);
  register_selection_grad();
  register_plain_gradients();
  register_random();
  register_random_values(table);
  register_dropout(table);
  register_scans(table);
  register_sorting(table);
  register_quantile();
  register_flip_roll_repeat(table);
  register_diagonals(table);
  register_view_copies(table);
  register_gather(table);
  register_index(table);
  register_index_along();
  register_masks();
  register_slice_writes();
  register_search(table);
  register_sparse_construction();
  register_sparse_entries();
  register_sparse_reductions();
  register_hot();  // after the rules of these operators
  register_dispatch();
  register_composites(kCompositesWithoutPlain);
  at_first_sparse(&register_sparse);
  register_view_replay();
  register_forward_mode();
}

[[maybe_unused]] const bool registered = (register_operators(), true);

}  // namespace

}  // namespace shardwise
