#include "runtime/api/distribute_tensor.h"

#include "placements/partial.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Sends each member its boxes of the root's `tensor`, of which other ranks' values are not read; returns this rank's.
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
  TORCH_CHECK_VALUE(
      is_dense, fmt::format("[distribute_tensor] a tensor of {} cannot be sharded. Give a dense torch.Tensor; a "
                            "LocalShardsWrapper goes to DTensor.from_local.",
                            tensor.layout() == c10::kStrided ? "a class of its own"
                                                             : fmt::format("layout {}", c10::str(tensor.layout()))));
}

/// Whether it was computed from others that require a gradient: a leaf of its values would keep it.
bool ends_a_gradient(const at::Tensor& tensor) { return tensor.requires_grad() && !tensor.is_leaf(); }

/// True where all ranks gave the same `numbers`, on meta or all with values: one message of two numbers, which CommTrace leaves out.
bool are_alike(const Group& group, const std::vector<int64_t>& numbers) {
  Digest digest;
  for (const int64_t number : numbers) digest.add(number);
  const std::vector<int64_t> own{digest.value(), static_cast<int64_t>(numbers.size())};
  const at::Tensor rows = gather_rows(group, "compare tensors", at::tensor(own, at::kLong).to(numbers_device(group)));
  return rows.eq(rows[0]).all().item<bool>();
}

Dims strides_of(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided ? dense_strides(tensor.sizes(), tensor.strides())
                                          : row_major_strides(tensor.sizes());
}

/// What all ranks take of the root's tensor.
struct Agreed {
  bool is_on_meta = false;  // it has no values, and no other rank's has
  Dims strides;
  bool requires_grad = false;
};

/// Dtype, sizes and kind of the tensor, compared before values are sent.
Agreed agree(const at::Tensor& tensor, const DeviceMesh& mesh, int64_t root) {
  const Dims strides = strides_of(tensor);
  std::vector<int64_t> mine{static_cast<int64_t>(tensor.layout()), static_cast<int64_t>(tensor.scalar_type()),
                            ends_a_gradient(tensor)};
  mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
  mine.insert(mine.end(), strides.begin(), strides.end());
  mine.push_back(tensor.requires_grad());
  mine.push_back(tensor.is_meta());
  const Group& group = *mesh.group();
  if (are_alike(group, mine)) return {tensor.is_meta(), strides, tensor.requires_grad()};
  auto all = all_gather_numbers(group, mine);
  std::vector<bool> is_on_meta, require_grad;
  std::vector<Dims> all_strides;
  for (auto& numbers : all) {
    is_on_meta.push_back(numbers.back() != 0);
    numbers.pop_back();
    require_grad.push_back(numbers.back() != 0);
    numbers.pop_back();
    const auto begin = numbers.end() - (static_cast<int64_t>(numbers.size()) - 3) / 2;  // as many as sizes
    all_strides.emplace_back(begin, numbers.end());
    numbers.erase(begin, numbers.end());
  }
  const auto words = [](const std::vector<int64_t>& numbers) {
    return fmt::format("{} [{}]{}", c10::toString(static_cast<c10::ScalarType>(numbers[1])),
                       fmt::join(numbers.begin() + 3, numbers.end(), ", "), numbers[2] ? " that is not a leaf" : "");
  };
  for (size_t i = 1; i < all.size(); ++i)
    TORCH_CHECK_VALUE(all[i] == all[0], fmt::format("[distribute_tensor] rank {} gives a tensor {}, rank {} one {}. "
                                                    "Give the same shape, dtype and kind on every "
                                                    "rank; only the values of src_data_rank count.",
                                                    group.ranks[0], words(all[0]), group.ranks[i], words(all[i])));
  const bool has_values = !is_on_meta[group.index_of(root)];
  const auto filled = std::ranges::find(is_on_meta, false);
  TORCH_CHECK_VALUE(
      has_values || filled == is_on_meta.end(),
      fmt::format("[distribute_tensor] rank {}, whose values count, gives a tensor on meta, rank {} one with values. "
                  "Name a rank that has values as src_data_rank, or give a tensor on meta on every rank.",
                  root, group.ranks[filled - is_on_meta.begin()]));
  const auto at_root = group.index_of(root);
  return {!has_values, all_strides[at_root], require_grad[at_root]};
}

/// The result is a leaf: a gradient would end there.
void check_leaf(const at::Tensor& tensor) {
  TORCH_CHECK(
      !ends_a_gradient(tensor),
      "[distribute_tensor] should be used to distribute leaf tensors, and this one was computed from others that "
      "require a gradient, which would end here. Give tensor.detach(); or keep the gradient with "
      "DTensor.from_local(tensor, mesh, [Replicate()]).redistribute(placements=...).");
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& given_mesh, Placements placements,
                             std::optional<int64_t> src_data_rank) {
  if (is_dtensor(tensor)) return redistribute(tensor, given_mesh, std::move(placements));
  BelowAutograd guard;
  at::NoGradGuard no_grad;
  const bool scatters = given_mesh->is_member() && src_data_rank && given_mesh->size() > 1;
  Agreed agreed{tensor.is_meta(), strides_of(tensor), tensor.requires_grad()};
  int64_t root = given_mesh->rank();
  if (scatters) {
    TORCH_CHECK_VALUE(
        *src_data_rank >= 0 && *src_data_rank < given_mesh->size(),
        fmt::format("[distribute_tensor] src_data_rank {} is no place in the mesh {} of {} ranks. Use [0, {}) or none.",
                    *src_data_rank, to_string(*given_mesh), given_mesh->size(), given_mesh->size()));
    root = given_mesh->grid().ranks[*src_data_rank];
    agreed = agree(tensor, *given_mesh, root);
  }
  check_plain(tensor);
  check_leaf(tensor);
  const MeshPtr mesh = agreed.is_on_meta ? given_mesh->on_meta() : given_mesh->with_memory();
  auto spec = Spec::intern(mesh, tensor.sizes(), std::move(placements), agreed.strides, tensor.scalar_type());
  auto scattered = spec->with_placements(without_partial(spec->placements()));
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
  return agreed.requires_grad ? result.set_requires_grad(true) : result;
}

}  // namespace shardwise
