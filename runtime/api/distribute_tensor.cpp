#include "runtime/api/distribute_tensor.h"

#include "placements/placement_list.h"
#include "runtime/api/local_pieces.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/subclass_parts.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

/// The root sends each member its boxes of the root's `tensor`; the values of other ranks' tensors are not read. Returns this rank's
/// pieces.
Shards scatter(const at::Tensor& tensor, const Spec& spec, int64_t root) {
  const c10::Device device = spec.mesh()->device();
  const Group& group = *spec.mesh()->group();
  const bool is_root = spec.mesh()->rank() == root;
  const auto values_of = [&](const Box& box) { return narrowed(tensor, Box::whole(spec.sizes()), box); };
  Shards pieces;
  PackedMessages messages(device);
  for (const Box& box : spec.boxes()) {
    pieces.push_back(empty_piece(spec, box.sizes, device));
    if (is_root)
      pieces.back().copy_(values_of(box));
    else
      messages.receive(root, pieces.back());
  }
  for (const int64_t rank : group.ranks)
    if (is_root && rank != root)
      for (const Box& box : spec.layout().boxes(rank)) messages.send(rank, values_of(box));
  messages.start(group);
  messages.finish();
  return pieces;
}

void check_plain(const at::Tensor& tensor) {
  const auto keys = tensor.key_set();
  const bool is_dense =
      tensor.layout() == c10::kStrided && !keys.has(c10::DispatchKey::Python) &&
      (keys.has_backend(c10::BackendComponent::CPUBit) || keys.has_backend(c10::BackendComponent::CUDABit) ||
       keys.has_backend(c10::BackendComponent::MetaBit));
  SW_CHECK_VALUE(
      is_dense,
      "[distribute_tensor] a tensor of {} cannot be sharded. Give a dense torch.Tensor; for a LocalShardsWrapper use "
      "DTensor.from_local.",
      tensor.layout() == c10::kStrided ? "a class of its own" : fmt::format("layout {}", c10::str(tensor.layout())));
}

/// Each rank cuts its part from its own object, with the operators of its class. Nothing is sent. A rank cuts the parts of all ranks, so that all
/// have the error if the class refuses one of them.
at::Tensor distribute_subclass(const at::Tensor& object, const MeshPtr& given_mesh, Placements placements) {
  const MeshPtr mesh = object.is_meta() ? given_mesh->on_meta() : given_mesh->with_memory();
  const SpecPtr spec =
      Spec::intern(mesh, object.sizes(), std::move(placements), object.strides(), object.scalar_type());
  check_placed("distribute_tensor", object, spec->layout());
  Shards parts;
  for (int64_t rank : mesh->grid().ranks) {
    const at::Tensor part =
        part_of("distribute_tensor", object, Box::whole(spec->sizes()), spec->layout().boxes(rank)[0]);
    if (rank == mesh->rank()) parts.push_back(part);
  }
  at::Tensor result = wrap(spec, std::move(parts));
  return object.requires_grad() ? result.set_requires_grad(true) : result;
}

/// True if the tensor was computed from others that require a gradient. The result is a leaf, so the gradient would stop there.
bool ends_a_gradient(const at::Tensor& tensor) { return tensor.requires_grad() && !tensor.is_leaf(); }

Dims strides_of(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided ? dense_strides(tensor.sizes(), tensor.strides())
                                          : row_major_strides(tensor.sizes());
}

/// The facts about one rank's tensor. All ranks take strides, requires_grad and the kind of memory from the root's.
struct Given {
  c10::Layout layout;
  c10::ScalarType dtype;
  bool ends_gradient;
  Dims sizes, strides;
  bool requires_grad;
  bool is_on_meta;  // it has no values

  static Given of(const at::Tensor& tensor) {
    return {tensor.layout(),    tensor.scalar_type(),   ends_a_gradient(tensor), Dims(tensor.sizes()),
            strides_of(tensor), tensor.requires_grad(), tensor.is_meta()};
  }
  static Given of(const Facts& facts) {
    FactReader reader(facts);
    const auto layout = static_cast<c10::Layout>(reader.number());
    const auto dtype = static_cast<c10::ScalarType>(reader.number());
    const bool ends_gradient = reader.number() != 0;
    Dims sizes = reader.list();
    Dims strides = reader.list();
    const bool requires_grad = reader.number() != 0;
    return {layout, dtype, ends_gradient, std::move(sizes), std::move(strides), requires_grad, reader.number() != 0};
  }
  Facts facts() const {
    Facts facts("a tensor");
    facts.number(static_cast<int64_t>(layout)).number(static_cast<int64_t>(dtype)).number(ends_gradient);
    return facts.list(sizes).list(strides).number(requires_grad).number(is_on_meta);
  }

  bool is_alike(const Given& other) const {
    return layout == other.layout && dtype == other.dtype && ends_gradient == other.ends_gradient &&
           sizes == other.sizes;
  }
  std::string words() const {
    return fmt::format("{} [{}]{}", c10::toString(dtype), fmt::join(sizes, ", "),
                       ends_gradient ? " that is not a leaf" : "");
  }
};

/// The root's facts, after the ranks have compared theirs. Collective.
Given agreed_on(const Given& own, const DeviceMesh& mesh, int64_t root) {
  const Group& group = *mesh.group();
  std::vector<Given> all;
  for (const Facts& facts : agree(group, "distribute_tensor", own.facts())) all.push_back(Given::of(facts));
  for (size_t i = 1; i < all.size(); ++i)
    SW_CHECK_VALUE(all[i].is_alike(all[0]),
                   "[distribute_tensor] rank {} gives a tensor {}, but rank {} gives a tensor {}. Give the same shape, "
                   "dtype and kind on every rank; only the values of src_data_rank count.",
                   group.ranks[0], all[0].words(), group.ranks[i], all[i].words());
  Given& of_root = all[group.index_of(root)];
  const auto filled = std::ranges::find(all, false, &Given::is_on_meta);
  SW_CHECK_VALUE(!of_root.is_on_meta || filled == all.end(),
                 "[distribute_tensor] rank {} is src_data_rank and gives a tensor on meta, but rank {} gives a tensor "
                 "with values. Use a rank that has values as src_data_rank, or give a tensor on meta on every rank.",
                 root, group.ranks[filled - all.begin()]);
  return std::move(of_root);
}

/// The result is a leaf, so a gradient would stop there.
void check_leaf(const at::Tensor& tensor) {
  TORCH_CHECK(!ends_a_gradient(tensor),
              "[distribute_tensor] should be used to distribute leaf tensors, but this tensor was computed from others "
              "that require a gradient, and the gradient would end here. Give tensor.detach(); or keep the gradient "
              "with DTensor.from_local(tensor, mesh, [Replicate()]).redistribute(placements=...).");
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& given_mesh, Placements placements,
                             std::optional<int64_t> src_data_rank) {
  if (is_dtensor(tensor)) return redistribute(tensor, given_mesh, std::move(placements));
  check_has_sizes("distribute_tensor", tensor);
  BelowAutograd guard;
  at::NoGradGuard no_grad;
  if (is_subclass(tensor)) {
    check_leaf(tensor);
    return distribute_subclass(tensor, given_mesh, std::move(placements));
  }
  const bool scatters = given_mesh->is_member() && src_data_rank && given_mesh->size() > 1;
  Given given = Given::of(tensor);
  int64_t root = given_mesh->rank();
  if (scatters) {
    SW_CHECK_VALUE(*src_data_rank >= 0 && *src_data_rank < given_mesh->size(),
                   "[distribute_tensor] src_data_rank {} is not a place in the mesh {} of {} ranks. Use a place in [0, "
                   "{}), or none.",
                   *src_data_rank, to_string(*given_mesh), given_mesh->size(), given_mesh->size());
    root = given_mesh->grid().ranks[*src_data_rank];
    given = agreed_on(given, *given_mesh, root);
  }
  check_plain(tensor);
  check_leaf(tensor);
  const MeshPtr mesh = given.is_on_meta ? given_mesh->on_meta() : given_mesh->with_memory();
  auto spec = Spec::intern(mesh, tensor.sizes(), std::move(placements), given.strides, tensor.scalar_type());
  auto scattered = spec->reduced();
  const bool is_read = root == mesh->rank() && tensor.device().type() != mesh->device_type();
  const at::Tensor source = is_read ? tensor.detach().to(mesh->device()) : tensor.detach();

  Shards shards;
  if (scatters) {
    CommScope scope("distribute_tensor", CommScope::Cause::kProgram);
    shards = scatter(source, *scattered, root);
  } else if (mesh->is_member()) {
    auto replicated = spec->replicated();
    shards = move(replicated, {source}, scattered);
    if (scattered == replicated) shards[0] = empty_piece(*spec, spec->sizes(), source.device()).copy_(source);
  }
  at::Tensor result = wrap(spec, move(scattered, shards, spec));
  return given.requires_grad ? result.set_requires_grad(true) : result;
}

}  // namespace shardwise
