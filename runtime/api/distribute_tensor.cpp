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

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace shardwise {
namespace {

/// A tensor on its way to its layout.
struct Distributed {
  at::Tensor source;  // of this rank; the values of other ranks than the root are not read
  SpecPtr spec;
  SpecPtr scattered;  // without Partial
  bool requires_grad;
  Shards pieces = {};  // of this rank, as `scattered`

  int64_t n_bytes() const { return spec->numel() * spec->element_bytes(); }
};

at::Tensor values_of(const Distributed& tensor, const Box& box) {
  return narrowed(tensor.source, Box::whole(tensor.spec->sizes()), box);
}

/// Copies this rank's boxes of its own source.
void take_pieces(Distributed& tensor) {
  const Spec& spec = *tensor.scattered;
  for (const Box& box : spec.boxes())
    tensor.pieces.push_back(empty_piece(spec, box.sizes, spec.mesh()->device()).copy_(values_of(tensor, box)));
}

/// The root sends each member its boxes of all `tensors`, which lie on one mesh.
void scatter(std::span<Distributed> tensors, int64_t root) {
  const DeviceMesh& mesh = *tensors[0].scattered->mesh();
  const bool is_root = mesh.rank() == root;
  PackedMessages messages(mesh.device());
  for (Distributed& each : tensors) {
    const Spec& spec = *each.scattered;
    if (!is_root) {
      for (const Box& box : spec.boxes())
        messages.receive(root, each.pieces.emplace_back(empty_piece(spec, box.sizes, mesh.device())));
      continue;
    }
    take_pieces(each);
    for (const int64_t rank : mesh.group()->ranks)
      if (rank != root)
        for (const Box& box : spec.layout().boxes(rank)) messages.send(rank, values_of(each, box));
  }
  messages.start(*mesh.group());
  messages.finish();
}

/// scatter() of tensors of at most kBucketBytes at a time, as messages of small parts are packed into buffers.
void scatter_in_buckets(std::span<Distributed> tensors, int64_t root) {
  const CommScope scope("distribute_tensor", CommScope::Cause::kProgram);
  while (!tensors.empty()) {
    size_t n = 0;
    for (int64_t n_bytes = 0; n < tensors.size(); ++n) {
      n_bytes += tensors[n].n_bytes();
      const bool is_on_first_mesh = tensors[n].scattered->mesh() == tensors[0].scattered->mesh();
      if (n > 0 && (n_bytes > kBucketBytes || !is_on_first_mesh)) break;
    }
    scatter(tensors.first(n), root);
    tensors = tensors.subspan(n);
  }
}

bool is_dense(const at::Tensor& tensor) {
  const auto keys = tensor.key_set();
  return tensor.layout() == c10::kStrided && !keys.has(c10::DispatchKey::Python) &&
         (keys.has_backend(c10::BackendComponent::CPUBit) || keys.has_backend(c10::BackendComponent::CUDABit) ||
          keys.has_backend(c10::BackendComponent::MetaBit));
}

void check_plain(const at::Tensor& tensor) {
  SW_CHECK_VALUE(
      is_dense(tensor),
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

Dims dense_strides_of(const at::Tensor& tensor) {
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
    return {tensor.layout(),          tensor.scalar_type(),   ends_a_gradient(tensor), Dims(tensor.sizes()),
            dense_strides_of(tensor), tensor.requires_grad(), tensor.is_meta()};
  }
  static Given of(FactReader& reader) {
    const auto layout = static_cast<c10::Layout>(reader.number());
    const auto dtype = static_cast<c10::ScalarType>(reader.number());
    const bool ends_gradient = reader.number() != 0;
    Dims sizes = reader.list();
    Dims strides = reader.list();
    const bool requires_grad = reader.number() != 0;
    return {layout, dtype, ends_gradient, std::move(sizes), std::move(strides), requires_grad, reader.number() != 0};
  }
  void add_to(Facts& facts) const {
    facts.number(static_cast<int64_t>(layout)).number(static_cast<int64_t>(dtype)).number(ends_gradient);
    facts.list(sizes).list(strides).number(requires_grad).number(is_on_meta);
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

/// The root's facts about a tensor, of `all` ranks' facts by group order.
Given compared(std::vector<Given> all, const Group& group, int64_t root) {
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

/// The elements of the tensors, row by row, if they have at most `n_bytes` bytes in this rank's memory; else "". With `is_planned`, tensors on
/// meta count as zeros in memory.
std::string bytes_in(at::TensorList tensors, size_t n_bytes, bool is_planned) {
  std::string result;
  for (const at::Tensor& tensor : tensors) {
    const bool is_here = tensor.is_cpu() || (is_planned && tensor.is_meta());
    if (!is_here || !is_dense(tensor) || result.size() + tensor.nbytes() > n_bytes) return "";
    if (tensor.is_meta()) {
      result.append(tensor.nbytes(), '\0');
      continue;
    }
    const at::Tensor rows = at::empty(tensor.sizes(), tensor.options()).copy_(tensor);
    result.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
  }
  return result;
}

/// The root's facts about each tensor, and what it gives of their values.
struct Agreed {
  std::vector<Given> given;
  std::string bytes;  // bytes_in() all tensors

  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> result;
    for (size_t begin = 0; const auto& each : given) {
      result.push_back(at::empty_strided(each.sizes, each.strides, each.dtype));
      void* const rows = const_cast<char*>(bytes.data()) + begin;
      result.back().copy_(at::from_blob(rows, each.sizes, at::TensorOptions(each.dtype)));
      begin += result.back().nbytes();
    }
    return result;
  }
};

/// Compares the ranks' facts about `tensors`. The root's values come in the same message, where they fit. Collective.
Agreed agreed_on(at::TensorList tensors, const DeviceMesh& mesh, int64_t root) {
  const Group& group = *mesh.group();
  Facts facts(tensors.size() == 1 ? "a tensor" : fmt::format("{} tensors", tensors.size()));
  for (const at::Tensor& each : tensors) Given::of(each).add_to(facts);
  const size_t n_left = facts.words().size() < kShortFacts ? kShortFacts - facts.words().size() - 1 : 0;
  const bool is_planned = !group.sends && mesh.planned_type() == c10::kCPU;
  const bool has_values = mesh.rank() == root || is_planned;
  const std::string bytes = has_values ? bytes_in(tensors, n_left * sizeof(int64_t), is_planned) : "";
  facts.text(mesh.rank() == root ? bytes : "");
  std::vector<std::vector<Given>> by_tensor(tensors.size());
  Agreed result;
  for (const Facts& of_rank : agree(group, "distribute_tensor", facts)) {
    FactReader reader(of_rank);
    for (std::vector<Given>& all : by_tensor) all.push_back(Given::of(reader));
    result.bytes += reader.text();
  }
  if (is_planned) result.bytes = bytes;  // the root counts as having sent them
  for (std::vector<Given>& all : by_tensor) result.given.push_back(compared(std::move(all), group, root));
  return result;
}

/// The result is a leaf, so a gradient would stop there.
void check_leaf(const at::Tensor& tensor) {
  TORCH_CHECK(!ends_a_gradient(tensor),
              "[distribute_tensor] should be used to distribute leaf tensors, but this tensor was computed from others "
              "that require a gradient, and the gradient would end here. Give tensor.detach(); or keep the gradient "
              "with DTensor.from_local(tensor, mesh, [Replicate()]).redistribute(placements=...).");
}

/// The global rank of the root.
int64_t root_at(int64_t place, const DeviceMesh& mesh) {
  SW_CHECK_VALUE(place >= 0 && place < mesh.size(),
                 "[distribute_tensor] src_data_rank {} is not a place in the mesh {} of {} ranks. Use a place in [0, "
                 "{}), or none.",
                 place, to_string(mesh), mesh.size(), mesh.size());
  return mesh.grid().ranks[place];
}

/// Distributes dense tensors, each to its own placements.
std::vector<at::Tensor> distribute_plain(at::TensorList tensors, const MeshPtr& given_mesh,
                                         std::vector<Placements> placements, std::optional<int64_t> src_data_rank) {
  bool scatters = given_mesh->is_member() && src_data_rank && given_mesh->size() > 1;
  int64_t root = given_mesh->rank();
  std::vector<Given> given;
  std::vector<at::Tensor> sources;
  if (scatters) {
    root = root_at(*src_data_rank, *given_mesh);
    Agreed agreed = agreed_on(tensors, *given_mesh, root);
    if (!agreed.bytes.empty()) sources = agreed.tensors();
    given = std::move(agreed.given);
  } else {
    for (const at::Tensor& tensor : tensors) given.push_back(Given::of(tensor));
  }
  if (!sources.empty()) {
    scatters = false;
    root = given_mesh->rank();
  } else {
    for (const at::Tensor& tensor : tensors) sources.push_back(tensor.detach());
  }
  std::vector<Distributed> distributed;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_plain(tensors[i]);
    check_leaf(tensors[i]);
    const MeshPtr mesh = given[i].is_on_meta ? given_mesh->on_meta() : given_mesh->with_memory();
    auto spec =
        Spec::intern(mesh, sources[i].sizes(), std::move(placements[i]), given[i].strides, sources[i].scalar_type());
    const bool is_read = root == mesh->rank() && sources[i].device().type() != mesh->device_type();
    distributed.push_back(
        {is_read ? sources[i].to(mesh->device()) : sources[i], spec, spec->reduced(), given[i].requires_grad});
    if (!scatters && mesh->is_member()) take_pieces(distributed.back());
  }
  if (scatters) scatter_in_buckets(distributed, root);
  std::vector<at::Tensor> results;
  for (const auto& [source, spec, scattered, requires_grad, pieces] : distributed) {
    results.push_back(wrap(spec, move(scattered, pieces, spec)));
    if (requires_grad) results.back().set_requires_grad(true);
  }
  return results;
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank) {
  if (is_dtensor(tensor)) return redistribute(tensor, mesh, std::move(placements));
  check_has_sizes("distribute_tensor", tensor);
  BelowAutograd guard;
  at::NoGradGuard no_grad;
  if (is_subclass(tensor)) {
    check_leaf(tensor);
    return distribute_subclass(tensor, mesh, std::move(placements));
  }
  return distribute_plain(tensor, mesh, {std::move(placements)}, src_data_rank)[0];
}

std::vector<at::Tensor> distribute_tensors(at::TensorList tensors, const MeshPtr& mesh,
                                           std::vector<Placements> placements, std::optional<int64_t> src_data_rank) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return !is_dtensor(tensor) && !is_subclass(tensor) && tensor.layout() == c10::kStrided;
  };
  for (const at::Tensor& tensor : tensors) check_has_sizes("distribute_tensor", tensor);
  if (std::ranges::all_of(tensors, is_plain) && !tensors.empty()) {
    BelowAutograd guard;
    at::NoGradGuard no_grad;
    return distribute_plain(tensors, mesh, std::move(placements), src_data_rank);
  }
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < tensors.size(); ++i)
    results.push_back(distribute_tensor(tensors[i], mesh, std::move(placements[i]), src_data_rank));
  return results;
}

}  // namespace shardwise
