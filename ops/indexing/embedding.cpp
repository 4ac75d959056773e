// ops/indexing/embedding.cpp: lookups in a table of any layout. The table never moves: ids go to its rows, and what ranks found is summed.
//
//   table on a mesh dim    ids there      result there
//   Shard(0), pieces       replicated     Partial(sum)
//   Shard(1)               replicated     Shard(last dim)
//   Replicate              as they are    as the ids
//
// aten's own derivative knows how many rows the table has, not where they are: here it is a function of its own.
#include "ops/families.h"
#include "ops/indexing/embedding_rows.h"
#include "ops/kernels.h"
#include "placements/partial.h"
#include "runtime/below.h"
#include "runtime/collectives.h"
#include "runtime/comm_trace.h"
#include "runtime/dispatch.h"
#include "runtime/dtensor.h"
#include "runtime/execute.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "aten::embedding";

/// Where ids must lie and results come to lie, per mesh dim.
struct Lookup {
  Placements ids, result;
};

bool is_sum(const Placement& placement) { return placement.is_partial() && is_linear(placement.reduce()); }

Lookup lay_out(const Spec& table, const Spec& ids) {
  Lookup lookup;
  bool ids_moved = false;  // explicit sizes of inner cuts speak of the outer ones
  for (size_t m = 0; m < table.placements().size(); ++m) {
    const Placement &of_table = table.placements()[m], &of_ids = ids.placements()[m];
    if (of_table.is_replicate() && of_ids.is_shard()) {
      const Placement cut = ids_moved ? Placement::shard(of_ids.dim()) : of_ids;
      lookup.ids.push_back(cut);
      lookup.result.push_back(cut);
      continue;
    }
    ids_moved |= of_ids.is_shard();
    lookup.ids.push_back(Placement::replicate());
    const bool is_summed = of_table.is_shard(0) || of_table.is_enumerable();
    lookup.result.push_back(is_summed              ? Placement::partial()
                            : of_table.is_shard(1) ? of_table.with_dim(ids.dim())
                                                   : of_table);
  }
  return lookup;
}

Dims shape_of_result(const Spec& table, const Spec& ids) {
  Dims sizes(ids.sizes());
  sizes.push_back(table.sizes()[1]);
  return sizes;
}

SpecPtr spec_of_result(const Spec& table, const Spec& ids) {
  const Dims sizes = shape_of_result(table, ids);
  return Spec::intern(table.mesh(), sizes, lay_out(table, ids).result, row_major_strides(sizes), table.dtype());
}

/// Finds the worst id on all ranks alike: where ids are cut, the ranks tell each other. Not on devices, whose kernels check as
/// torch's do.
void check_range(const at::Tensor& ids, int64_t n_rows) {
  const auto* impl = maybe_dtensor(ids);
  const Spec& spec = *impl->spec();
  if (!spec.is_member() || ids.device().type() != c10::kCPU) return;
  int64_t lowest = std::numeric_limits<int64_t>::max(), highest = std::numeric_limits<int64_t>::min();
  if (const at::Tensor& piece = impl->shards()[0]; piece.numel() > 0) {
    const auto [low, high] = at::aminmax(piece);
    lowest = low.item<int64_t>();
    highest = high.item<int64_t>();
  }
  at::Tensor bounds = at::tensor({~lowest, highest}, at::kLong);
  for (size_t m = 0; m < spec.placements().size(); ++m)
    if (spec.placements()[m].is_shard()) all_reduce(*spec.mesh()->group(static_cast<int64_t>(m)), bounds, Reduce::kMax);
  lowest = ~bounds[0].item<int64_t>();
  highest = bounds[1].item<int64_t>();
  if (lowest > highest) return;  // no ids at all
  const int64_t worst = lowest < 0 && -lowest > highest - n_rows ? lowest : highest;
  TORCH_CHECK_INDEX(lowest >= 0 && highest < n_rows,
                    fmt::format("[{}] id {} is no row of the table: it has {} rows. Use ids in [0, {}).", kOp, worst,
                                n_rows, n_rows));
}

/// Ids as the lookup needs them: distributed, of the table's mesh, where its rows are, and in range.
at::Tensor prepared_ids(const at::Tensor& ids, const Spec& table) {
  const auto type = ids.scalar_type();
  TORCH_CHECK_TYPE(type == at::kLong || type == at::kInt,
                   fmt::format("[{}] ids are {}. Use int64 or int32.", kOp, c10::toString(type)));
  at::Tensor own = ids;
  if (!is_dtensor(ids)) {
    TORCH_CHECK_TYPE(
        ids.dim() == 0 || ImplicitReplication::is_on(),
        fmt::format("[{}] got a torch.Tensor of shape [{}] next to a DTensor. Wrap it with distribute_tensor(x, mesh, "
                    "[Replicate()]), or work under implicit_replication().",
                    kOp, fmt::join(ids.sizes(), ", ")));
    own = from_local(ids, table.mesh(), Placements(table.placements().size()), {.shape = Dims(ids.sizes())});
  }
  const Spec& spec = *spec_of(own);
  TORCH_CHECK_VALUE(
      spec.mesh() == table.mesh(),
      fmt::format("[{}] operands live on different meshes: {} and {}. Move one with redistribute(mesh, ...).", kOp,
                  to_string(*table.mesh()), to_string(*spec.mesh())));
  BelowGuard guard;
  CommScope scope(kOp);
  Placements wanted = lay_out(table, spec).ids;
  if (wanted != spec.placements()) own = redistribute(own, std::move(wanted));
  check_range(own, table.sizes()[0]);
  return own;
}

/// The table, with any Partial that lookups do not pass on reduced.
at::Tensor prepared_table(const at::Tensor& weight) {
  TORCH_CHECK_TYPE(
      is_dtensor(weight),
      fmt::format("[{}] got a torch.Tensor of shape [{}] as the table next to a DTensor of ids. Wrap it with "
                  "distribute_tensor(x, mesh, [Replicate()]).",
                  kOp, fmt::join(weight.sizes(), ", ")));
  TORCH_CHECK_VALUE(weight.dim() == 2, fmt::format("[{}] the table of shape [{}] has {} dims. Give [rows, columns].",
                                                   kOp, fmt::join(weight.sizes(), ", "), weight.dim()));
  Placements placements = spec_of(weight)->placements().vec();
  for (Placement& placement : placements)
    if (placement.is_partial() && !is_sum(placement)) placement = Placement::replicate();
  return placements == spec_of(weight)->placements() ? weight : redistribute(weight, std::move(placements));
}

/// Looks up on this rank. Pre: prepared operands.
at::Tensor look_up(const at::Tensor& weight, const at::Tensor& ids) {
  const auto *table = maybe_dtensor(weight), *of_ids = maybe_dtensor(ids);
  const Spec& spec = *table->spec();
  auto result_spec = spec_of_result(spec, *of_ids->spec());
  Shards pieces;
  BelowGuard guard;
  if (spec.layout().is_enumerable()) {
    if (spec.is_member())
      pieces.push_back(
          at::zeros(result_spec->sizes(), at::TensorOptions().dtype(spec.dtype()).device(weight.device())));
    for (size_t i = 0; i < spec.boxes().size(); ++i) {
      const Box& box = spec.boxes()[i];
      pieces[0]
          .narrow(-1, box.offsets[1], box.sizes[1])
          .add_(lookup_rows(table->shards()[i], of_ids->shards()[0], box.offsets[0]));
    }
  } else if (spec.is_member()) {
    pieces.push_back(lookup_rows(table->shards()[0], of_ids->shards()[0], spec.boxes()[0].offsets[0]));
  }
  return wrap(std::move(result_spec), std::move(pieces));
}

/// The gradient's placements for one lookup: `grads` where results of the lookup are wanted, `table` where the table's comes out.
struct Backward {
  Placements grads, table;
};

Backward lay_out_backward(const Spec& table, const Spec& ids, const Spec& grad) {
  Backward backward{lay_out(table, ids).result, table.placements().vec()};
  for (size_t m = 0; m < backward.grads.size(); ++m) {
    Placement &of_grad = backward.grads[m], &of_table = backward.table[m];
    if (of_grad.is_partial()) of_grad = Placement::replicate();
    if (of_table.is_partial()) of_table = Placement::replicate();
    if (!of_table.is_replicate()) continue;
    if (of_grad.is_replicate() && is_sum(grad.placements()[m])) of_grad = grad.placements()[m];
    if (of_grad.is_shard()) of_table = Placement::partial();
    if (of_grad.is_partial()) of_table = of_grad;
  }
  return backward;
}

/// The table's gradient, laid out as the table; sums over ids of other ranks are left Partial. `table` says where rows are.
at::Tensor table_grad(const at::Tensor& grad, const at::Tensor& ids, const SpecPtr& table, int64_t skipped) {
  BelowGuard guard;
  CommScope scope("aten::embedding_backward");
  const Backward backward = lay_out_backward(*table, *spec_of(ids), *spec_of(grad));
  const at::Tensor moved = redistribute(grad, backward.grads);
  auto spec = Spec::intern(table->mesh(), table->sizes(), backward.table, table->strides(), grad.scalar_type());
  Shards pieces;
  for (const Box& box : spec->boxes()) {
    at::Tensor columns = maybe_dtensor(moved)->shards()[0];
    if (columns.size(-1) != box.sizes[1]) columns = columns.narrow(-1, box.offsets[1], box.sizes[1]);
    pieces.push_back(add_rows(columns, maybe_dtensor(ids)->shards()[0], box.offsets[0], box.sizes[0], skipped));
  }
  return wrap(std::move(spec), std::move(pieces));
}

/// 1 / how often each id occurs in the whole batch, [..., 1], replicated.
at::Tensor inverse_counts(const at::Tensor& ids, at::ScalarType dtype) {
  BelowGuard guard;
  const at::Tensor all = redistribute(ids, Placements(spec_of(ids)->placements().size()));
  Dims sizes(ids.sizes());
  sizes.push_back(1);
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece : maybe_dtensor(all)->shards()) {
    const auto [values, places, counts] =
        at::_unique2(piece, /*sorted=*/false, /*return_inverse=*/true, /*return_counts=*/true);
    pieces.push_back(counts.to(dtype).reciprocal().index_select(0, places.reshape(-1)).view(sizes));
  }
  return from_pieces(std::move(pieces), Spec::intern(spec_of(ids)->mesh(), sizes, spec_of(all)->placements().vec(),
                                                     row_major_strides(sizes), dtype));
}

void keep(AutogradContext* ctx, const SpecPtr& table) { ctx->saved_data["table"] = c10::IValue::make_capsule(table); }

SpecPtr kept(const AutogradContext* ctx) {
  return SpecPtr::reclaim_copy(static_cast<Spec*>(ctx->saved_data.at("table").toCapsule().get()));
}

/// The table's gradient as a function of the result's.
struct EmbeddingGrad : torch::autograd::Function<EmbeddingGrad> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& ids, const SpecPtr& table,
                            int64_t skipped) {
    ctx->save_for_backward({ids});
    ctx->saved_data["skipped"] = skipped;
    return table_grad(grad, ids, table, skipped);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    const int64_t skipped = ctx->saved_data["skipped"].toInt();
    at::Tensor rows = at::embedding(grads[0], ids);
    if (skipped >= 0) rows = rows * ids.ne(skipped).unsqueeze(-1);
    return {rows, {}, {}, {}};
  }
};

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx,
                            bool by_freq) {
    ctx->save_for_backward({ids});
    keep(ctx, spec_of(weight));
    ctx->saved_data["padding_idx"] = padding_idx;
    ctx->saved_data["by_freq"] = by_freq;
    return look_up(weight, ids);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    at::Tensor grad = grads[0];
    if (!grad.defined()) return {{}, {}, {}, {}};
    if (ctx->saved_data["by_freq"].toBool()) grad = grad * inverse_counts(ids, grad.scalar_type());
    return {EmbeddingGrad::apply(grad, ids, kept(ctx), ctx->saved_data["padding_idx"].toInt()), {}, {}, {}};
  }
};

void check_padding(int64_t padding_idx, int64_t n_rows) {
  TORCH_CHECK_VALUE(padding_idx < std::max<int64_t>(n_rows, 1),
                    fmt::format("[{}] padding_idx {} is no row of the table: it has {} rows. Use one in "
                                "[0, {}), or none.",
                                kOp, padding_idx, n_rows, n_rows));
}

at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx, bool /*by_freq*/,
                 bool /*sparse*/) {
  const at::Tensor table = prepared_table(weight);
  check_padding(padding_idx, table.size(0));
  return look_up(table, prepared_ids(ids, *spec_of(table)));
}

at::Tensor differentiable_embed(const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx, bool by_freq,
                                bool sparse) {
  if (!weight.requires_grad() || !c10::GradMode::is_enabled()) return embed(weight, ids, padding_idx, by_freq, sparse);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !sparse, fmt::format("[{}] sparse=True asks for sparse gradients, which a DTensor cannot hold. Use sparse=False: "
                           "the gradient has this rank's rows only.",
                           kOp));
  const at::Tensor table = prepared_table(weight);
  check_padding(padding_idx, table.size(0));
  return Embedding::apply(table, prepared_ids(ids, *spec_of(table)), padding_idx, by_freq);
}

}  // namespace

void register_embedding() {
  aten_kernels().impl("embedding", &embed);
  aten_autograd_kernels().impl("embedding", &differentiable_embed);
}

}  // namespace shardwise
