#include "runtime/api/redistribute.h"

#include "runtime/api/gradients.h"
#include "runtime/api/to_local.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/redistribute/sparse_move.h"
#include "runtime/tensor/spec.h"
#include "runtime/tensor/traced_pieces.h"
#include "text/check.h"

#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

CommScope scope_of_move() {
  const auto cause = CommScope::current_cause();
  return CommScope(cause == CommScope::Cause::kOperator ? CommScope::current_op() : "redistribute", cause);
}

/// Pre: `to` differs from the tensor's spec.
at::Tensor moved(const at::Tensor& tensor, const SpecPtr& to, const RedistributeOptions& options) {
  if (tensor.scalar_type() != to->dtype()) {
    const at::Tensor cast = tensor.to(to->dtype());
    return spec_of(cast) == to ? cast : moved(cast, to, options);
  }
  const auto* impl = maybe_dtensor(tensor);
  const CommScope scope = scope_of_move();
  if (impl->is_sparse()) return wrap_sparse(to, move_sparse(*impl, to), {impl->entries()->sparse_dim});
  const bool is_to_meta = to->mesh()->is_meta() && !impl->spec()->mesh()->is_meta();
  if (!options.async_op || is_to_meta || impl->holds_subclass() || is_traced(impl->shards()))
    return wrap(to, move(*impl, to, options.plan, options.memory));
  auto pending = start_move(impl->spec(), impl->shards(), to, options.plan);
  at::Tensor result = wrap(to, {});
  maybe_dtensor(result)->set_pending(std::move(pending));
  return result;
}

/// `tensor` as `to`, if the owners of its rows can send them (a lookup's Partial result); otherwise undefined.
at::Tensor sent_by_owners(const at::Tensor& tensor, const SpecPtr& to) {
  const CommScope scope = scope_of_move();
  auto pieces = move_owned_rows(*maybe_dtensor(tensor), to);
  return pieces ? wrap(to, *std::move(pieces)) : at::Tensor();
}

/// The options that a backward takes over from its forward. Links are left out, because the reverse move has other ones.
PlanOptions capped(const c10::IValue& memory_cap) { return {.memory_cap = memory_cap.toInt()}; }

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const SpecPtr& to,
                            const RedistributeOptions& options, const MoveDtypes& dtypes) {
    ctx->saved_data["backward_dtype"] = dtypes.backward;
    ctx->saved_data["memory_cap"] = options.plan.memory_cap;
    if (at::Tensor sent = sent_by_owners(tensor, to); sent.defined()) {
      ctx->saved_data["grad_spec"] =
          to_value(to->reduced());  // the lookup takes gradients of any layout, and sends rows
      return sent;
    }
    ctx->saved_data["grad_spec"] = to_value(spec_of(tensor)->reduced());
    return moved(tensor, to, options);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const SpecPtr spec = to_spec(ctx->saved_data.at("grad_spec"));
    const auto dtype = ctx->saved_data.at("backward_dtype").toOptional<at::ScalarType>();
    at::Tensor cast;
    if (dtype && grads[0].defined()) cast = grads[0].to(*dtype);
    at::Tensor grad = laid_out_as(cast.defined() ? cast : grads[0], *spec, capped(ctx->saved_data.at("memory_cap")));
    if (grad.defined() && grad.scalar_type() != spec->dtype()) grad = grad.to(spec->dtype());
    return {grad, {}, {}, {}};
  }
};

std::vector<at::Tensor> moved_together(at::TensorList tensors, const std::vector<SpecPtr>& to,
                                       const PlanOptions& options, int64_t bucket_bytes) {
  CommScope scope("redistribute_many", CommScope::Cause::kProgram);
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

/// Moves several tensors; the gradients are moved back together too.
struct RedistributeMany : torch::autograd::Function<RedistributeMany> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, const std::vector<SpecPtr>& to,
                               const PlanOptions& options, int64_t bucket_bytes) {
    ctx->set_materialize_grads(false);  // torch's zeros would be plain tensors
    c10::List<c10::IValue> specs(c10::AnyType::get());
    for (const at::Tensor& tensor : tensors) specs.push_back(to_value(spec_of(tensor)->reduced()));
    ctx->saved_data["specs"] = specs;
    std::vector<bool> is_frozen = c10::fmap(tensors, [&](const at::Tensor& tensor) { return !tensor.requires_grad(); });
    ctx->saved_data["bucket_bytes"] = bucket_bytes;
    ctx->saved_data["memory_cap"] = options.memory_cap;
    variable_list moved = moved_together(tensors, to, options, bucket_bytes), frozen;
    for (size_t i = 0; i < moved.size(); ++i)
      if (is_frozen[i]) frozen.push_back(moved[i]);
    ctx->mark_non_differentiable(frozen);
    return moved;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto specs = ctx->saved_data.at("specs").toListRef();
    variable_list result(grads.size() + 3), defined;
    std::vector<Placements> to;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      defined.push_back(grads[i]);
      to.push_back(to_spec(specs[i])->placements().vec());
    }
    const auto moved = redistribute_many(defined, to, capped(ctx->saved_data.at("memory_cap")),
                                         ctx->saved_data.at("bucket_bytes").toInt());
    auto next = moved.begin();
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined()) result[i] = *next++;
    return result;
  }
};

/// `tensor` without its forward-mode tangent, which a torch::autograd::Function in C++ does not accept. In a kernel the history is not
/// needed either.
at::Tensor without_tangent(const at::Tensor& tensor) {
  if (!tensor._fw_grad(/*level=*/0).defined()) return tensor;
  const bool is_in_kernel = c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
  return is_in_kernel ? tensor.detach() : tensor._fw_primal(/*level=*/0);
}

}  // namespace

at::Tensor redistribute(const at::Tensor& tensor, Placements placements) {
  return redistribute(tensor, spec_of(tensor)->mesh(), std::move(placements));
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options) {
  return redistribute(tensor, mesh, std::move(placements), options, {});
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options, const MoveDtypes& dtypes) {
  const SpecPtr& from = spec_of(tensor);
  maybe_dtensor(tensor)->refresh();
  if (from->mesh()->is_meta() && !mesh->is_meta())
    return redistribute(tensor, mesh->on_meta(), std::move(placements), options, dtypes);
  const at::ScalarType dtype = dtypes.forward.value_or(from->dtype());
  auto to = mesh == from->mesh() && dtype == from->dtype()
                ? from->with_placements(std::move(placements))
                : Spec::intern(mesh, from->sizes(), std::move(placements), from->strides(), dtype);
  if (to == from) return maybe_dtensor(tensor)->holds_subclass() ? tensor : at::alias(tensor);
  at::Tensor result =
      records(tensor) ? Redistribute::apply(without_tangent(tensor), to, options, dtypes) : sent_by_owners(tensor, to);
  if (!result.defined()) result = moved(tensor, to, options);
  if (const at::Tensor& tangent = tensor._fw_grad(0); tangent.defined())
    result._set_fw_grad(redistribute(tangent, mesh, to->placements().vec(), options, dtypes), 0,
                        /*is_inplace_op=*/false);
  return result;
}

std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements, const PlanOptions& options,
                                          int64_t bucket_bytes) {
  SW_CHECK_VALUE(tensors.size() == placements.size(),
                 "[redistribute_many] got {} tensors and {} lists of placements. Give one list per tensor.",
                 tensors.size(), placements.size());
  SW_CHECK_VALUE(bucket_bytes >= 0,
                 "[redistribute_many] bucket_bytes is {}: it cannot be negative. Use 0 to share no messages.",
                 bucket_bytes);
  std::vector<SpecPtr> to;
  for (size_t i = 0; i < tensors.size(); ++i) to.push_back(spec_of(tensors[i])->with_placements(placements[i]));

  std::vector<at::Tensor> results(tensors.size()), together;
  std::vector<SpecPtr> to_together;
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    maybe_dtensor(tensors[i])->refresh();
    if (to[i] == spec_of(tensors[i]) || tensors[i].is_sparse() || maybe_dtensor(tensors[i])->owned_rows() ||
        maybe_dtensor(tensors[i])->holds_subclass()) {
      results[i] = redistribute(tensors[i], placements[i]);
      continue;
    }
    together.push_back(without_tangent(tensors[i]));
    to_together.push_back(to[i]);
    places.push_back(i);
  }
  if (together.empty()) return results;
  const auto moved = std::ranges::any_of(together, records)
                         ? RedistributeMany::apply(at::TensorList(together), to_together, options, bucket_bytes)
                         : moved_together(together, to_together, options, bucket_bytes);
  for (size_t i = 0; i < places.size(); ++i) results[places[i]] = moved[i];
  for (const size_t i : places)
    if (const at::Tensor& tangent = tensors[i]._fw_grad(0); tangent.defined())
      results[i]._set_fw_grad(redistribute(tangent, placements[i]), 0, /*is_inplace_op=*/false);
  return results;
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const auto n_dims = spec_of(tensor)->mesh()->ndim();
  return to_piece(redistribute(tensor, Placements(n_dims)), std::move(grad_placements));
}

}  // namespace shardwise
