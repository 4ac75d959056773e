#include "runtime/api/from_local.h"

#include "placements/partial.h"
#include "runtime/api/forward_scope.h"
#include "runtime/api/gradients.h"
#include "runtime/api/local_pieces.h"
#include "runtime/api/to_local.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/given_memory.h"
#include "runtime/tensor/sparse.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

/// A node of our own: a torch::autograd::Function would cost a microsecond more.
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
    if (grads[0].defined()) {
      ForwardScope::give_out_gradient(*grad_spec);
      result = to_pieces(laid_out_as(grads[0], *grad_spec));
    }
    result.resize(n_pieces);
    return result;
  }
  std::string name() const override { return "FromPiecesBackward"; }
};

void record_history(const at::Tensor& tensor, const std::vector<at::Tensor>& pieces, const SpecPtr& grad_spec) {
  auto node = make_node<FromPiecesBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(pieces));
  node->grad_spec = grad_spec;
  node->n_pieces = pieces.size();
  node->is_linear = std::ranges::all_of(spec_of(tensor)->placements(), [](const Placement& placement) {
    return !placement.is_partial() || placement.is_linear_partial();
  });
  torch::autograd::set_history(tensor, node);
}

bool has_tangent(const at::Tensor& piece) { return piece._fw_grad(0).defined(); }

at::Tensor wrap_pieces(const std::vector<at::Tensor>& pieces, const SpecPtr& spec, const SpecPtr& grad_spec) {
  Shards shards;
  for (const at::Tensor& piece : pieces) shards.push_back(detached(piece));
  const bool is_sparse = !pieces.empty() && pieces[0].is_sparse();
  at::Tensor result =
      is_sparse ? wrap_sparse(spec, std::move(shards), {pieces[0].sparse_dim()}) : wrap(spec, std::move(shards));
  mark_given(*maybe_dtensor(result));
  if (pieces.size() == 1) share_version(result, pieces[0]);
  if (std::ranges::any_of(pieces, records)) record_history(result, pieces, grad_spec ? grad_spec : spec_of_grad(spec));
  if (std::ranges::any_of(pieces, has_tangent)) {
    std::vector<at::Tensor> tangents;
    for (const at::Tensor& piece : pieces)
      tangents.push_back(has_tangent(piece) ? piece._fw_grad(0) : at::zeros_like(piece));
    result._set_fw_grad(wrap_pieces(tangents, spec, grad_spec), 0, /*is_inplace_op=*/false);
  }
  return result;
}

}  // namespace

at::Tensor from_local(const at::Tensor& local, const MeshPtr& given_mesh, Placements placements,
                      const FromLocalOptions& options) {
  TORCH_CHECK_TYPE(!is_dtensor(local),
                   "[from_local] the local tensor is a DTensor already. Use redistribute(mesh, placements).");
  const MeshPtr& mesh = local.is_meta() == given_mesh->is_meta() ? given_mesh : given_mesh->on(local.device().type());
  const Dims sizes = options.shape ? *options.shape : sizes_of_even_shards(local.sizes(), *mesh, placements);
  TORCH_CHECK_VALUE(!mesh->is_member() || static_cast<int64_t>(sizes.size()) == local.dim(),
                    fmt::format("[from_local] shape [{}] has {} dims, the local tensor of shape [{}] has {}. "
                                "Give the size of each dim of the whole tensor.",
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

at::Tensor replica_of(const at::Tensor& tensor, const MeshPtr& mesh) {
  if (is_dtensor(tensor)) return tensor;
  return from_local(tensor, mesh, Placements(mesh->ndim()), {.shape = Dims(tensor.sizes())});
}

}  // namespace shardwise
