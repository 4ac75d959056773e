#include "runtime/api/distribute_tensor.h"

#include "placements/partial.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"

#include <fmt/ranges.h>

namespace shardwise {
namespace {

/// Sends each member its boxes of the root's `tensor`; returns this rank's.
Shards scatter(const at::Tensor& tensor, const Spec& spec, int64_t root) {
  const Group& group = *spec.mesh()->group();
  const bool is_root = spec.mesh()->rank() == root;
  const auto values_of = [&](const Box& box) { return narrowed(tensor, Box::whole(spec.sizes()), box); };
  Shards pieces;
  PackedMessages messages(tensor.device());
  for (const Box& box : spec.boxes()) {
    pieces.push_back(empty_piece(spec, box.sizes, tensor.device()));
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
  TORCH_CHECK_VALUE(is_dense,
                    fmt::format("[distribute_tensor] a tensor of layout {} and keys {} cannot be sharded. Give a "
                                "dense torch.Tensor; a LocalShardsWrapper goes to DTensor.from_local.",
                                c10::str(tensor.layout()), c10::toString(keys)));
}

/// Dtype, sizes and kind of the tensor, compared before values are sent.
void check_same_kind(const at::Tensor& tensor, const DeviceMesh& mesh) {
  std::vector<int64_t> mine{static_cast<int64_t>(tensor.layout()), tensor.is_meta(),
                            static_cast<int64_t>(tensor.scalar_type())};
  mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
  const Group& group = *mesh.group();
  const auto all = all_gather_numbers(group, mine);
  const auto words = [](const std::vector<int64_t>& numbers) {
    return fmt::format("{} [{}]{}", c10::toString(static_cast<c10::ScalarType>(numbers[2])),
                       fmt::join(numbers.begin() + 3, numbers.end(), ", "), numbers[1] ? " on meta" : "");
  };
  for (size_t i = 1; i < all.size(); ++i)
    TORCH_CHECK_VALUE(all[i] == all[0], fmt::format("[distribute_tensor] rank {} gives a tensor {}, rank {} one {}. "
                                                    "Give the same shape, dtype and kind on every "
                                                    "rank; only the values of src_data_rank count.",
                                                    group.ranks[0], words(all[0]), group.ranks[i], words(all[i])));
}

/// Pieces of a tensor without values: nothing is sent.
Shards pieces_on_meta(const Spec& spec) {
  Shards pieces;
  for (const Box& box : spec.boxes()) pieces.push_back(empty_piece(spec, box.sizes, c10::kMeta));
  return pieces;
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank) {
  if (is_dtensor(tensor)) return redistribute(tensor, mesh, std::move(placements));
  const bool requires_grad = tensor.requires_grad();
  BelowAutograd guard;
  at::NoGradGuard no_grad;
  if (mesh->is_member() && src_data_rank && mesh->size() > 1) check_same_kind(tensor, *mesh);
  check_plain(tensor);
  auto spec = Spec::intern(mesh, tensor.sizes(), std::move(placements), dense_strides(tensor.sizes(), tensor.strides()),
                           tensor.scalar_type());
  if (tensor.is_meta()) {
    at::Tensor result = wrap(spec, pieces_on_meta(*spec));
    return requires_grad ? result.set_requires_grad(true) : result;
  }
  auto scattered = spec->with_placements(without_partial(spec->placements()));
  const at::Tensor source =
      tensor.device().type() == mesh->device_type() ? tensor.detach() : tensor.detach().to(mesh->device());

  Shards shards;
  if (mesh->is_member() && src_data_rank && mesh->size() > 1) {
    CommScope scope("distribute_tensor", CommScope::Cause::kProgram);
    TORCH_CHECK_VALUE(
        *src_data_rank >= 0 && *src_data_rank < mesh->size(),
        fmt::format("[distribute_tensor] src_data_rank {} is no place in the mesh {} of {} ranks. Use [0, {}) or none.",
                    *src_data_rank, to_string(*mesh), mesh->size(), mesh->size()));
    shards = scatter(source, *scattered, mesh->grid().ranks[*src_data_rank]);
  } else if (mesh->is_member()) {
    auto replicated = spec->replicated();
    shards = move(replicated, {source}, scattered);
    if (scattered == replicated) shards[0] = empty_piece(*spec, spec->sizes(), source.device()).copy_(source);
  }
  at::Tensor result = wrap(spec, move(scattered, shards, spec));
  return requires_grad ? result.set_requires_grad(true) : result;
}

}  // namespace shardwise
