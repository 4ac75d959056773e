#include "runtime/api/from_local.h"

#include "placements/placement_list.h"
#include "runtime/api/gradients.h"
#include "runtime/api/local_form.h"
#include "runtime/api/local_pieces.h"
#include "runtime/api/to_local.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/sparse.h"
#include "runtime/tensor/subclass.h"
#include "text/check.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

/// Autograd node. A torch::autograd::Function would cost a microsecond more.
struct FromPiecesBackward final : torch::autograd::Node {
  SpecPtr spec;
  SpecPtr grad_spec;
  size_t n_pieces = 0;
  bool is_linear = true;
  bool is_flat = false;  // the only input is all pieces in a row

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_linear,
        "[from_local] a Partial of max, min or product has no gradient here, because it is unknown which rank's value "
        "was chosen. Reduce the values with amax, amin or prod of a sharded tensor, or detach the local tensor.");
    variable_list result;
    if (grads[0].defined()) {
      const at::Tensor grad = laid_out_as(grads[0], *grad_spec);
      result = is_flat ? variable_list{to_local(grad)} : to_pieces(grad);
    }
    result.resize(n_pieces);
    return result;
  }
  std::string name() const override { return "FromPiecesBackward"; }
};

/// The nodes of this thread's latest tensors with adds_gradients, as long as a graph holds them.
class RecentNodes {
 public:
  static RecentNodes& of_thread() {
    static thread_local RecentNodes recent;
    return recent;
  }

  /// The node that passes its gradients to these edges; null if there is none.
  NodePtr find(const torch::autograd::edge_list& edges, const SpecPtr& spec, const SpecPtr& grad_spec) const {
    for (const WeakNodePtr& each : nodes_)
      if (NodePtr node = each.lock()) {
        const auto& known = static_cast<const FromPiecesBackward&>(*node);
        if (known.spec == spec && known.grad_spec == grad_spec && known.next_edges() == edges) return node;
      }
    return nullptr;
  }
  void add(const NodePtr& node) {
    if (nodes_.size() == kMost) nodes_.pop_front();
    nodes_.emplace_back(node);
  }

 private:
  static constexpr size_t kMost = 4;  // a layer's other inputs may come in between
  std::deque<WeakNodePtr> nodes_;
};

struct GradientOptions {
  SpecPtr spec;          // null: that of the tensor, reduced
  bool is_flat = false;  // the only piece is all pieces in a row
  bool adds = false;     // FromLocalOptions::adds_gradients
};

void record_history(const at::Tensor& tensor, const std::vector<at::Tensor>& pieces, const GradientOptions& options) {
  const SpecPtr& spec = spec_of(tensor);
  const SpecPtr grad_spec = options.spec ? options.spec : spec->reduced();
  auto edges = torch::autograd::collect_next_edges(pieces);
  if (options.adds)
    if (NodePtr known = RecentNodes::of_thread().find(edges, spec, grad_spec))
      return torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(known), 0));
  auto node = make_node<FromPiecesBackward>();
  node->set_next_edges(std::move(edges));
  node->spec = spec;
  node->grad_spec = grad_spec;
  node->n_pieces = pieces.size();
  node->is_flat = options.is_flat;
  node->is_linear = are_linear(spec->placements());
  torch::autograd::set_history(tensor, node);
  if (options.adds) RecentNodes::of_thread().add(node);
}

bool has_tangent(const at::Tensor& piece) { return piece._fw_grad(0).defined(); }

at::Tensor wrap_pieces(const std::vector<at::Tensor>& pieces, const SpecPtr& spec, const GradientOptions& gradient) {
  Shards shards;
  for (const at::Tensor& piece : pieces) shards.push_back(detached(piece));
  if (gradient.is_flat) shards = pieces_of(*spec, shards[0]);
  const bool is_sparse = !pieces.empty() && pieces[0].is_sparse();
  at::Tensor result =
      is_sparse ? wrap_sparse(spec, std::move(shards), {pieces[0].sparse_dim()}) : wrap(spec, std::move(shards));
  if (pieces.size() == 1) share_version(result, pieces[0]);
  if (std::ranges::any_of(pieces, records)) record_history(result, pieces, gradient);
  if (std::ranges::any_of(pieces, has_tangent)) {
    std::vector<at::Tensor> tangents;
    for (const at::Tensor& piece : pieces)
      tangents.push_back(has_tangent(piece) ? piece._fw_grad(0) : at::zeros_like(piece));
    result._set_fw_grad(wrap_pieces(tangents, spec, gradient), 0, /*is_inplace_op=*/false);
  }
  return result;
}

/// Makes the gradient of `result` go to `local` also if `piece`, from which `result` was made, holds another rank's values.
at::Tensor with_history_of(const at::Tensor& local, const at::Tensor& piece, at::Tensor result,
                           const GradientOptions& gradient) {
  if (records(local) && !records(piece)) record_history(result, {local}, gradient);
  return result;
}

}  // namespace

at::Tensor from_local(const at::Tensor& local, const MeshPtr& given_mesh, Placements placements,
                      const FromLocalOptions& options) {
  TORCH_CHECK(!is_dtensor(local),  // a RuntimeError, as torch's
              "[from_local] the local_tensor argument only accepts torch.Tensor, and got a DTensor of shape ",
              local.sizes(), ". Use redistribute(mesh, placements).");
  if (const LocalClass* known = local_class_of(local))
    return known->from_local(local, given_mesh, std::move(placements), options);
  check_has_sizes("from_local", local);
  const MeshPtr& mesh = local.is_meta() == given_mesh->is_meta() ? given_mesh : given_mesh->on(local.device().type());
  const bool is_ragged = std::ranges::any_of(placements, [](const Placement& each) { return each.n_flattened() > 0; });
  const bool is_joined = std::ranges::any_of(placements, &Placement::joins_boxes);
  SW_CHECK_VALUE(!is_ragged || options.shape,
                 "[from_local] a local tensor of shape [{}] does not determine the global shape under {}. Give shape= "
                 "of the whole tensor.",
                 fmt::join(sizes_of(local), ", "), to_string(placements));
  const Dims sizes = options.shape ? *options.shape : sizes_of_even_shards(sizes_of(local), *mesh, placements);
  const bool is_sparse = local.is_sparse();
  TORCH_CHECK_NOT_IMPLEMENTED(!is_sparse || !options.run_check,
                              "[from_local] run_check compares dense tensors. Use run_check=False for a sparse one.");
  if (options.shape && (options.run_check || (is_subclass(local) && says_places(local))))
    placements = with_sizes_of_ranks(local, *mesh, std::move(placements), sizes);
  SW_CHECK_VALUE(!mesh->is_member() || is_ragged || static_cast<int64_t>(sizes.size()) == local.dim(),
                 "[from_local] shape [{}] has {} dims, but the local tensor of shape [{}] has {}. Give the size of "
                 "each dim of the whole tensor.",
                 fmt::join(sizes, ", "), sizes.size(), fmt::join(sizes_of(local), ", "), local.dim());
  // Partial terms are reduced in memory order, so all ranks need equal strides; other ranks' local tensors may have others.
  const bool is_partial = !mesh_dims_with_terms(placements).empty();
  const bool has_own_strides = !is_sparse && !is_partial && local.dim() == static_cast<int64_t>(sizes.size());
  const Dims strides = options.stride    ? *options.stride
                       : has_own_strides ? dense_strides(sizes, strides_of(local))
                                         : row_major_strides(sizes);
  SW_CHECK_NOT_IMPLEMENTED(
      !is_sparse || !is_joined,
      "[from_local] {} cannot place a sparse tensor: it divides dense memory. Use Shard or EnumerableShard.",
      to_string(placements));
  auto spec = Spec::intern(mesh, sizes, std::move(placements), strides, local.scalar_type());
  at::Tensor piece = local;
  if (options.run_check) {
    check_ranks_agree(local, *spec);
    if (!is_subclass(local)) piece = with_equal_replicas(local, *spec);
  }
  const bool is_given = options.grad_placements && records(local);
  GradientOptions gradient{.adds = options.adds_gradients};
  if (is_given) gradient.spec = spec->with_placements(*options.grad_placements);
  if (spec->flat_sizes()) {
    check_flat_part(piece, *spec);
    gradient.is_flat = true;
    return with_history_of(local, piece, wrap_pieces({piece}, spec, gradient), gradient);
  }
  std::vector<at::Tensor> pieces;
  if (mesh->is_member() && !(spec->boxes().empty() && local.sym_numel() == 0)) pieces.push_back(piece);
  if (pieces.empty()) fix_symbols(local.sym_sizes());  // no piece has them
  check_pieces(pieces, *spec);
  if (is_sparse && pieces.empty()) return wrap_sparse(spec, {}, {local.sparse_dim()});
  return with_history_of(local, piece, wrap_pieces(pieces, spec, gradient), gradient);
}

at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec) {
  check_pieces(pieces, *spec);
  return wrap_pieces(pieces, spec, {});
}

void check_loadable(const Spec& spec, int64_t saved_by) {
  const Layout& layout = spec.layout();
  const int64_t rank = spec.mesh()->rank();
  const bool is_member = layout.grid().coord_of(saved_by).has_value();
  const bool have_same_pieces =
      !layout.has_terms() && is_member == spec.is_member() && layout.boxes(saved_by) == layout.boxes(rank);
  SW_CHECK_VALUE(
      rank == saved_by || have_same_pieces,
      "[load] rank {} saved its part of a tensor, {}, but rank {}, which has another part, loads it. Save and load one "
      "file per rank, or use torch.distributed.checkpoint, with which every rank reads the parts that it needs.",
      saved_by, to_string(spec), rank);
}

at::Tensor replica_of(const at::Tensor& tensor, const MeshPtr& mesh) {
  if (is_dtensor(tensor)) return tensor;
  return from_local(tensor, mesh, Placements(mesh->ndim()), {.shape = Dims(tensor.sizes()), .adds_gradients = true});
}

}  // namespace shardwise
