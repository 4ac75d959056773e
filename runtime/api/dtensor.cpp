#include "runtime/api/dtensor.h"

#include "placements/partial.h"
#include "runtime/api/local_pieces.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/sparse_move.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/spec_value.h"

#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void keep(AutogradContext* ctx, const SpecPtr& spec) { ctx->saved_data["spec"] = to_value(spec); }
SpecPtr kept(const AutogradContext* ctx) { return to_spec(ctx->saved_data.at("spec")); }

/// The gradient of a tensor of `spec`: the same values laid out its way.
at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec) {
  return grad.defined() && is_dtensor(grad) ? redistribute(grad, spec.mesh(), spec.placements().vec()) : grad;
}

bool records(const at::Tensor& tensor) { return tensor.requires_grad() && c10::GradMode::is_enabled(); }

/// How gradients come to a tensor of `spec`: its way, replicated where that is Partial. Most often the spec itself.
SpecPtr spec_of_grad(const SpecPtr& spec) {
  return spec->layout().is_partial() ? spec->with_placements(without_partial(spec->placements())) : spec;
}

/// piece.detach() without the way through the dispatcher, where nothing but a plain tensor is meant.
at::Tensor detached(const at::Tensor& piece) {
  constexpr c10::DispatchKeySet kWrapped(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Python});
  auto* impl = piece.unsafeGetTensorImpl();
  if (impl->key_set().has_any(kWrapped) || piece._fw_grad(0).defined() || piece.is_inference()) return piece.detach();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

// Nodes of our own where a torch::autograd::Function would cost a microsecond more.

struct FromPiecesBackward final : torch::autograd::Node {
  SpecPtr grad_spec;
  size_t n_pieces = 0;
  bool is_linear = true;

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_linear,
        "[from_local] a Partial of max, min or product has no gradient here: which rank's value counted is not known. "
        "Reduce the values with amax, amin or prod of a sharded tensor, or detach the local tensor.");
    variable_list result;
    if (grads[0].defined()) result = to_pieces(laid_out_as(grads[0], *grad_spec));
    result.resize(n_pieces);
    return result;
  }
  std::string name() const override { return "FromPiecesBackward"; }
};

struct ToPiecesBackward final : torch::autograd::Node {
  SpecPtr grad_spec;

  variable_list apply(variable_list&& grads) override {
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined())
        grads[i] = at::full(grad_spec->boxes()[i].sizes, 0,
                            at::TensorOptions().dtype(grad_spec->dtype()).device(grad_spec->mesh()->device()));
    return {from_pieces(grads, grad_spec)};
  }
  std::string name() const override { return "ToPiecesBackward"; }
};

at::Tensor wrap_pieces(const std::vector<at::Tensor>& pieces, const SpecPtr& spec, const SpecPtr& grad_spec) {
  Shards shards;
  for (const at::Tensor& piece : pieces) shards.push_back(detached(piece));
  const bool is_sparse = !pieces.empty() && pieces[0].is_sparse();
  at::Tensor result =
      is_sparse ? wrap_sparse(spec, std::move(shards), {pieces[0].sparse_dim()}) : wrap(spec, std::move(shards));
  if (std::ranges::any_of(pieces, records)) {
    auto node = make_node<FromPiecesBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(pieces));
    node->grad_spec = grad_spec ? grad_spec : spec_of_grad(spec);
    node->n_pieces = pieces.size();
    node->is_linear = std::ranges::all_of(spec->placements(), [](const Placement& placement) {
      return !placement.is_partial() || placement.is_linear_partial();
    });
    torch::autograd::set_history(result, node);
  }
  const bool has_tangents =
      std::ranges::any_of(pieces, [](const at::Tensor& piece) { return piece._fw_grad(0).defined(); });
  if (has_tangents) {
    std::vector<at::Tensor> tangents;
    for (const at::Tensor& piece : pieces)
      tangents.push_back(piece._fw_grad(0).defined() ? piece._fw_grad(0) : at::zeros_like(piece));
    result._set_fw_grad(wrap_pieces(tangents, spec, grad_spec), 0, /*is_inplace_op=*/false);
  }
  return result;
}

/// The pieces with their history. Pre: grad mode is on, or there is a tangent.
variable_list taken_out(const at::Tensor& tensor, const SpecPtr& grad_spec) {
  variable_list pieces;
  for (const at::Tensor& piece : maybe_dtensor(tensor)->shards()) pieces.push_back(detached(piece));
  if (records(tensor)) {
    auto node = make_node<ToPiecesBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(tensor));
    node->grad_spec = grad_spec;
    torch::autograd::set_history(pieces, node);
  }
  if (const at::Tensor& tangent = tensor._fw_grad(0); tangent.defined()) {
    const variable_list of_tangent = taken_out(tangent, grad_spec);
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i]._set_fw_grad(of_tangent[i], 0, /*is_inplace_op=*/false);
  }
  return pieces;
}

at::Tensor moved(const at::Tensor& tensor, const SpecPtr& to, const RedistributeOptions& options) {
  const auto* impl = maybe_dtensor(tensor);
  const CommScope scope(CommScope::is_operator() ? CommScope::current_op() : "redistribute");
  if (impl->is_sparse()) return wrap_sparse(to, move_sparse(*impl, to), {impl->entries()->sparse_dim});
  if (!options.async_op || impl->spec() == to) return wrap(to, move(impl->spec(), impl->shards(), to, options.plan));
  auto pending = start_move(impl->spec(), impl->shards(), to, options.plan);
  at::Tensor result = wrap(to, {});
  maybe_dtensor(result)->set_pending(std::move(pending));
  return result;
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const SpecPtr& to,
                            const RedistributeOptions& options) {
    const auto& spec = maybe_dtensor(tensor)->spec();
    keep(ctx, spec_of_grad(spec));
    return moved(tensor, to, options);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {laid_out_as(grads[0], *kept(ctx)), {}, {}};
  }
};

std::vector<at::Tensor> moved_together(at::TensorList tensors, const std::vector<SpecPtr>& to,
                                       const PlanOptions& options, int64_t bucket_bytes) {
  CommScope scope("redistribute_many");
  std::vector<SpecPtr> from;
  std::vector<Shards> shards;
  for (const at::Tensor& tensor : tensors) {
    from.push_back(spec_of(tensor));
    shards.push_back(maybe_dtensor(tensor)->shards());
  }
  auto results = move_many(from, shards, to, options, bucket_bytes);
  std::vector<at::Tensor> wrapped;
  for (size_t i = 0; i < to.size(); ++i) wrapped.push_back(wrap(to[i], std::move(results[i])));
  return wrapped;
}

/// The gradients go back together too.
struct RedistributeMany : torch::autograd::Function<RedistributeMany> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, const std::vector<SpecPtr>& to,
                               const PlanOptions& options, int64_t bucket_bytes) {
    ctx->set_materialize_grads(false);  // torch's zeros would be plain
    c10::List<c10::IValue> specs(c10::AnyType::get());
    for (const at::Tensor& tensor : tensors) {
      const SpecPtr& spec = spec_of(tensor);
      specs.push_back(to_value(spec->with_placements(without_partial(spec->placements()))));
    }
    ctx->saved_data["specs"] = specs;
    std::vector<bool> is_frozen;
    for (const at::Tensor& tensor : tensors) is_frozen.push_back(!tensor.requires_grad());
    ctx->saved_data["bucket_bytes"] = bucket_bytes;
    variable_list moved = moved_together(tensors, to, options, bucket_bytes), frozen;
    for (size_t i = 0; i < moved.size(); ++i)
      if (is_frozen[i]) frozen.push_back(moved[i]);
    ctx->mark_non_differentiable(frozen);
    return moved;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto specs = ctx->saved_data.at("specs").toListRef();
    variable_list result(grads.size() + 3), defined;
    std::vector<SpecPtr> to;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      defined.push_back(grads[i]);
      to.push_back(to_spec(specs[i]));
    }
    const int64_t bucket_bytes = ctx->saved_data.at("bucket_bytes").toInt();
    auto moved = torch::autograd::GradMode::is_enabled()
                     ? RedistributeMany::apply(at::TensorList(defined), to, PlanOptions(), bucket_bytes)
                     : moved_together(defined, to, {}, bucket_bytes);
    auto next = moved.begin();
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined()) result[i] = *next++;
    return result;
  }
};

}  // namespace

const SpecPtr& spec_of(const at::Tensor& tensor) {
  const auto* impl = maybe_dtensor(tensor);
  TORCH_CHECK_TYPE(
      impl,
      "[shardwise] a torch.Tensor stands where a DTensor is needed. Make one with distribute_tensor or from_local.");
  return impl->spec();
}

at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                      const FromLocalOptions& options) {
  TORCH_CHECK_TYPE(!is_dtensor(local),
                   "[from_local] the local tensor is a DTensor already. Use redistribute(mesh, placements).");
  const Dims sizes = options.shape ? *options.shape : sizes_of_even_cut(local.sizes(), *mesh, placements);
  TORCH_CHECK_VALUE(!mesh->is_member() || static_cast<int64_t>(sizes.size()) == local.dim(),
                    fmt::format("[from_local] shape [{}] has {} dims, the local tensor of shape [{}] has {}.",
                                fmt::join(sizes, ", "), sizes.size(), fmt::join(local.sizes(), ", "), local.dim()));
  const bool is_sparse = local.is_sparse();
  TORCH_CHECK_NOT_IMPLEMENTED(!is_sparse || !options.run_check,
                              "[from_local] run_check compares dense tensors. Use run_check=False for a sparse one.");
  const Dims strides = options.stride ? *options.stride
                       : !is_sparse && local.dim() == static_cast<int64_t>(sizes.size())
                           ? dense_strides(sizes, local.strides())
                           : row_major_strides(sizes);
  auto spec = Spec::intern(mesh, sizes, std::move(placements), strides, local.scalar_type());
  at::Tensor piece = local;
  if (options.run_check) {
    check_ranks_agree(local, *spec);
    piece = records(local) ? local : with_equal_replicas(local, *spec);
  }
  std::vector<at::Tensor> pieces;
  if (mesh->is_member() && !(spec->boxes().empty() && local.numel() == 0)) pieces.push_back(std::move(piece));
  check_pieces(pieces, *spec);
  if (is_sparse && pieces.empty()) return wrap_sparse(spec, {}, {local.sparse_dim()});
  const bool is_given = options.grad_placements && records(local);
  return wrap_pieces(pieces, spec, is_given ? spec->with_placements(*options.grad_placements) : nullptr);
}

at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec) {
  check_pieces(pieces, *spec);
  return wrap_pieces(pieces, spec, nullptr);
}

std::vector<at::Tensor> to_pieces(const at::Tensor& tensor) {
  const SpecPtr& spec = spec_of(tensor);
  if (records(tensor) || tensor._fw_grad(0).defined()) return taken_out(tensor, spec_of_grad(spec));
  const Shards& shards = maybe_dtensor(tensor)->shards();
  return {shards.begin(), shards.end()};
}

at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const SpecPtr& spec = spec_of(tensor);
  const Shards& shards = maybe_dtensor(tensor)->shards();
  TORCH_CHECK_VALUE(shards.size() <= 1,
                    fmt::format("[to_local] rank {} holds {} pieces of {}. Use to_pieces(), or make the tensor from a "
                                "LocalShardsWrapper.",
                                spec->mesh()->rank(), shards.size(), to_string(*spec)));
  if (shards.empty())
    return at::empty({0}, at::TensorOptions().dtype(spec->dtype()).device(tensor.device()).layout(tensor.layout()));
  // Where gradients are recorded at all the caller may want one of the piece, and must not give it to ours.
  if (!records(tensor) && !tensor._fw_grad(0).defined())
    return c10::GradMode::is_enabled() ? detached(shards[0]) : shards[0];
  return taken_out(tensor, grad_placements ? spec->with_placements(*grad_placements) : spec_of_grad(spec))[0];
}

at::Tensor redistribute(const at::Tensor& tensor, Placements placements) {
  return redistribute(tensor, spec_of(tensor)->mesh(), std::move(placements));
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options) {
  const SpecPtr& from = spec_of(tensor);
  auto to = mesh == from->mesh()
                ? from->with_placements(std::move(placements))
                : Spec::intern(mesh, from->sizes(), std::move(placements), from->strides(), from->dtype());
  if (to == from) return at::alias(tensor);  // a view: what is written to one is seen, and checked, by the other
  at::Tensor result = records(tensor) ? Redistribute::apply(tensor, to, options) : moved(tensor, to, options);
  if (const at::Tensor& tangent = tensor._fw_grad(0); tangent.defined())
    result._set_fw_grad(redistribute(tangent, mesh, to->placements().vec(), options), 0, /*is_inplace_op=*/false);
  return result;
}

std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements, const PlanOptions& options,
                                          int64_t bucket_bytes) {
  TORCH_CHECK_VALUE(
      tensors.size() == placements.size(),
      fmt::format("[redistribute_many] {} tensors came with {} lists of placements. Give one list per tensor.",
                  tensors.size(), placements.size()));
  std::vector<SpecPtr> to;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SpecPtr& from = spec_of(tensors[i]);
    to.push_back(from->with_placements(placements[i]));
  }
  if (tensors.empty()) return {};
  if (std::ranges::any_of(tensors, &at::Tensor::is_sparse)) {
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < tensors.size(); ++i) results.push_back(redistribute(tensors[i], placements[i]));
    return results;
  }
  return std::ranges::any_of(tensors, records)
             ? RedistributeMany::apply(at::TensorList(tensors), to, options, bucket_bytes)
             : moved_together(tensors, to, options, bucket_bytes);
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const auto n_dims = spec_of(tensor)->mesh()->ndim();
  return to_local(redistribute(tensor, Placements(n_dims)), std::move(grad_placements));
}

namespace {

template <typename Make>
at::Tensor make(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype,
                const Make& make_piece) {
  auto spec = Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
  const auto options = at::TensorOptions().dtype(dtype).device(mesh->device());
  BelowAutograd guard;
  Shards shards;
  for (const Box& box : spec->boxes()) shards.push_back(make_piece(box, options));
  return wrap(std::move(spec), std::move(shards));
}

}  // namespace

at::Tensor full(c10::IntArrayRef sizes, const at::Scalar& value, const MeshPtr& mesh, Placements placements,
                at::ScalarType dtype) {
  const bool is_partial = std::ranges::any_of(placements, &Placement::is_partial);
  TORCH_CHECK_VALUE(!is_partial,
                    fmt::format("[full] cannot fill a tensor as {}: use Shard or Replicate.", to_string(placements)));
  return make(sizes, mesh, std::move(placements), dtype,
              [&](const Box& box, const at::TensorOptions& options) { return at::full(box.sizes, value, options); });
}

at::Tensor empty(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  return make(sizes, mesh, std::move(placements), dtype,
              [](const Box& box, const at::TensorOptions& options) { return at::empty(box.sizes, options); });
}

}  // namespace shardwise
