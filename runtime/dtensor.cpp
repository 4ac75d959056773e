#include "runtime/dtensor.h"

#include "runtime/below.h"
#include "runtime/collectives.h"
#include "runtime/comm_trace.h"
#include "runtime/execute.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Placements without_partial(c10::ArrayRef<Placement> placements) {
  Placements result = placements.vec();
  for (Placement& placement : result)
    if (placement.is_partial()) placement = Placement::replicate();
  return result;
}

void keep(AutogradContext* ctx, const SpecPtr& spec) { ctx->saved_data["spec"] = c10::IValue::make_capsule(spec); }

SpecPtr kept(const AutogradContext* ctx) {
  auto held = ctx->saved_data.at("spec").toCapsule();
  return SpecPtr::reclaim_copy(static_cast<Spec*>(held.get()));
}

/// The gradient of a tensor of `spec`: the same values laid out its way.
at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec) {
  return grad.defined() && is_dtensor(grad) ? redistribute(grad, spec.mesh(), spec.placements().vec()) : grad;
}

struct FromPieces : torch::autograd::Function<FromPieces> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList pieces, const SpecPtr& spec,
                            const SpecPtr& grad_spec) {
    keep(ctx, grad_spec);
    ctx->saved_data["n_pieces"] = static_cast<int64_t>(pieces.size());
    Shards shards;
    for (const at::Tensor& piece : pieces) shards.push_back(piece.detach());
    return wrap(spec, std::move(shards));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result;
    if (grads[0].defined()) result = to_pieces(laid_out_as(grads[0], *kept(ctx)));
    result.resize(ctx->saved_data["n_pieces"].toInt() + 2);  // nothing for the two specs
    return result;
  }
};

struct ToPieces : torch::autograd::Function<ToPieces> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& tensor, const SpecPtr& grad_spec) {
    keep(ctx, grad_spec);
    variable_list pieces;
    for (const at::Tensor& piece : maybe_dtensor(tensor)->shards()) pieces.push_back(piece.detach());
    return pieces;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto spec = kept(ctx);
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined())
        grads[i] = at::full(spec->boxes()[i].sizes, 0,
                            at::TensorOptions().dtype(spec->dtype()).device(spec->mesh()->device()));
    return {from_pieces(grads, spec), {}};
  }
};

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const SpecPtr& to) {
    const auto* impl = maybe_dtensor(tensor);
    keep(ctx, impl->spec()->with_placements(without_partial(impl->spec()->placements())));
    CommScope scope("redistribute");
    return wrap(to, move(impl->spec(), impl->shards(), to));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {laid_out_as(grads[0], *kept(ctx)), {}};
  }
};

bool records(const at::Tensor& tensor) { return tensor.requires_grad() && c10::GradMode::is_enabled(); }

/// Global sizes of which `local` is an even cut's piece.
Dims sizes_of_even_cut(c10::IntArrayRef local, const DeviceMesh& mesh, const Placements& placements) {
  Dims sizes(local);
  std::vector<bool> is_known(sizes.size());
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].is_enumerable()) {
      for (const ShardMetadata& piece : placements[m].pieces())
        for (size_t dim = 0; dim < sizes.size(); ++dim)
          sizes[dim] = std::max(sizes[dim], piece.offsets[dim] + piece.sizes[dim]);
      continue;
    }
    if (!placements[m].is_shard()) continue;
    const int64_t dim =
        placements[m].dim() < 0 ? placements[m].dim() + static_cast<int64_t>(sizes.size()) : placements[m].dim();
    if (dim < 0 || dim >= static_cast<int64_t>(sizes.size()) || is_known[dim]) continue;  // Layout says what is wrong
    if (placements[m].sizes().empty()) {
      sizes[dim] *= mesh.size(static_cast<int64_t>(m));
      continue;
    }
    sizes[dim] = 0;
    for (int64_t size : placements[m].sizes()) sizes[dim] += size;
    is_known[dim] = true;
  }
  return sizes;
}

void check_piece(const at::Tensor& piece, size_t i, const Spec& spec) {
  TORCH_CHECK_VALUE(piece.scalar_type() == spec.dtype(),
                    fmt::format("[from_local] piece {} is {}, the tensor {}. Use one dtype.", i,
                                c10::toString(piece.scalar_type()), c10::toString(spec.dtype())));
  TORCH_CHECK_VALUE(piece.device().type() == spec.mesh()->device_type(),
                    fmt::format("[from_local] piece {} is on {}, the mesh on {}. Move one of them.", i,
                                piece.device().str(), c10::DeviceTypeName(spec.mesh()->device_type(), true)));
}

void check_pieces(const std::vector<at::Tensor>& pieces, const Spec& spec) {
  const auto boxes = spec.boxes();
  TORCH_CHECK_VALUE(pieces.size() == boxes.size(),
                    fmt::format("[from_local] rank {} gives {} pieces; {} has {} there.", spec.mesh()->rank(),
                                pieces.size(), to_string(spec), boxes.size()));
  for (size_t i = 0; i < boxes.size(); ++i) {
    check_piece(pieces[i], i, spec);
    TORCH_CHECK_VALUE(
        pieces[i].sizes() == boxes[i].sizes,
        fmt::format(
            "[from_local] rank {} gives a piece of shape [{}] where {} has {} there. Give shape= and stride= of "
            "the whole tensor, and Shard(dim, sizes=[...]) where the cut is not torch.chunk's.",
            spec.mesh()->rank(), fmt::join(pieces[i].sizes(), ", "), to_string(spec), to_string(boxes[i])));
  }
}

/// Compares what the ranks believe, and tells all of them of the first who differs.
void check_ranks_agree(const at::Tensor& local, const Spec& spec) {
  if (!spec.is_member()) return;
  std::vector<int64_t> mine{static_cast<int64_t>(spec.dtype()), spec.dim()};
  mine.insert(mine.end(), spec.sizes().begin(), spec.sizes().end());
  const size_t n_agreed = mine.size();
  mine.insert(mine.end(), local.sizes().begin(), local.sizes().end());
  const Group& group = *spec.mesh()->group();
  const auto all = all_gather_numbers(group, mine);
  for (int64_t i = 0; i < group.size(); ++i) {
    const bool agrees =
        std::equal(all[0].begin(), all[0].begin() + static_cast<std::ptrdiff_t>(std::min(n_agreed, all[0].size())),
                   all[i].begin(), all[i].begin() + static_cast<std::ptrdiff_t>(std::min(n_agreed, all[i].size())));
    TORCH_CHECK_VALUE(
        agrees,
        fmt::format("[from_local] rank {} takes the whole tensor for (dtype, dims, sizes...) [{}], rank {} for [{}]. "
                    "Pass the same shape=, dtype and placements on every rank.",
                    group.ranks[0], fmt::join(all[0], ", "), group.ranks[i], fmt::join(all[i], ", ")));
  }
  for (int64_t i = 0; i < group.size() && !spec.layout().is_enumerable(); ++i) {
    const Dims expected = spec.layout().local_sizes(group.ranks[i]);
    const c10::IntArrayRef given = c10::IntArrayRef(all[i]).slice(n_agreed);
    TORCH_CHECK_VALUE(given == expected,
                      fmt::format("[from_local] rank {} gives a piece of shape [{}] where {} has [{}]. Give shape= and "
                                  "stride=, and Shard(dim, sizes=[...]) where the cut is not torch.chunk's.",
                                  group.ranks[i], fmt::join(given, ", "), to_string(spec), fmt::join(expected, ", ")));
  }
}

at::Tensor with_equal_replicas(at::Tensor local, const Spec& spec) {
  for (size_t m = 0; m < spec.placements().size(); ++m) {
    if (!spec.placements()[m].is_replicate() || !spec.is_member() || spec.mesh()->size(static_cast<int64_t>(m)) == 1)
      continue;
    const Group& line = *spec.mesh()->group(static_cast<int64_t>(m));
    Dims root = *spec.mesh()->coord();
    root[m] = 0;
    local = local.detach().clone(at::MemoryFormat::Contiguous);
    broadcast(line, local, line.index_of(spec.mesh()->grid().rank_at(root)));
  }
  return local;
}

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
  const Dims strides = options.stride                                      ? *options.stride
                       : local.dim() == static_cast<int64_t>(sizes.size()) ? dense_strides(sizes, local.strides())
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
  if (!records(local)) return from_pieces(std::move(pieces), spec);
  auto grad_spec =
      spec->with_placements(options.grad_placements ? *options.grad_placements : without_partial(spec->placements()));
  return FromPieces::apply(at::TensorList(pieces), spec, grad_spec);
}

at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec) {
  check_pieces(pieces, *spec);
  if (std::ranges::any_of(pieces, records))
    return FromPieces::apply(at::TensorList(pieces), spec, spec->with_placements(without_partial(spec->placements())));
  Shards shards;
  for (const at::Tensor& piece : pieces) shards.push_back(piece.detach());
  return wrap(spec, std::move(shards));
}

std::vector<at::Tensor> to_pieces(const at::Tensor& tensor) {
  const SpecPtr& spec = spec_of(tensor);
  if (records(tensor)) return ToPieces::apply(tensor, spec->with_placements(without_partial(spec->placements())));
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
  if (shards.empty()) return at::empty({0}, at::TensorOptions().dtype(spec->dtype()).device(tensor.device()));
  // Where gradients are recorded at all the caller may want one of the piece, and must not give it to ours.
  if (!records(tensor)) return c10::GradMode::is_enabled() ? shards[0].detach() : shards[0];
  return ToPieces::apply(
      tensor, spec->with_placements(grad_placements ? *grad_placements : without_partial(spec->placements())))[0];
}

at::Tensor redistribute(const at::Tensor& tensor, Placements placements) {
  return redistribute(tensor, spec_of(tensor)->mesh(), std::move(placements));
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements) {
  const SpecPtr& from = spec_of(tensor);
  auto to = Spec::intern(mesh, from->sizes(), std::move(placements), from->strides(), from->dtype());
  if (records(tensor)) return Redistribute::apply(tensor, to);
  CommScope scope("redistribute");
  return wrap(to, move(from, maybe_dtensor(tensor)->shards(), to));
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const auto n_dims = spec_of(tensor)->mesh()->ndim();
  return to_local(redistribute(tensor, Placements(n_dims)), std::move(grad_placements));
}

namespace {

/// Sends each member its box of the root's `tensor`; returns this rank's.
at::Tensor scatter(const at::Tensor& tensor, const Spec& spec, int64_t root) {
  const Group& group = *spec.mesh()->group();
  const bool is_root = group.ranks[group.index] == root;
  std::vector<int64_t> sends(group.size()), receives(group.size());
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < group.size() && is_root; ++i)
    for (const Box& box : spec.layout().boxes(group.ranks[i])) {
      at::Tensor part = tensor;
      for (int64_t dim = 0; dim < spec.dim(); ++dim) part = part.narrow(dim, box.offsets[dim], box.sizes[dim]);
      sends[i] += part.numel();
      parts.push_back(part.reshape(-1));
    }
  for (const Box& box : spec.boxes()) receives[group.index_of(root)] += box.numel();
  at::Tensor outgoing = parts.empty() ? at::empty({0}, tensor.options()) : at::cat(parts);
  at::Tensor incoming = at::empty({receives[group.index_of(root)]}, tensor.options());
  all_to_all(group, incoming, outgoing, receives, sends);
  return incoming;
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank) {
  if (is_dtensor(tensor)) return redistribute(tensor, mesh, std::move(placements));
  const bool requires_grad = tensor.requires_grad();
  BelowGuard guard;
  at::NoGradGuard no_grad;
  auto spec = Spec::intern(mesh, tensor.sizes(), std::move(placements), row_major_strides(tensor.sizes()),
                           tensor.scalar_type());
  auto scattered = spec->with_placements(without_partial(spec->placements()));
  const at::Tensor source =
      tensor.device().type() == mesh->device_type() ? tensor.detach() : tensor.detach().to(mesh->device());

  Shards shards;
  if (mesh->is_member() && src_data_rank && mesh->size() > 1) {
    CommScope scope("distribute_tensor");
    TORCH_CHECK_VALUE(
        *src_data_rank >= 0 && *src_data_rank < mesh->size(),
        fmt::format("[distribute_tensor] src_data_rank {} is no place in the mesh {} of {} ranks. Use [0, {}) or none.",
                    *src_data_rank, to_string(*mesh), mesh->size(), mesh->size()));
    const at::Tensor flat = scatter(source, *scattered, mesh->grid().ranks[*src_data_rank]);
    int64_t next = 0;
    for (const Box& box : scattered->boxes()) {
      shards.push_back(flat.narrow(0, next, box.numel()).view(box.sizes));
      next += box.numel();
    }
  } else if (mesh->is_member()) {
    auto replicated = spec->replicated();
    shards = move(replicated, {source}, scattered);
    if (scattered == replicated) shards[0] = shards[0].clone(at::MemoryFormat::Contiguous);
  }
  at::Tensor result = wrap(spec, move(scattered, shards, spec));
  return requires_grad ? result.set_requires_grad(true) : result;
}

namespace {

template <typename Make>
at::Tensor make(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype,
                const Make& make_piece) {
  auto spec = Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
  const auto options = at::TensorOptions().dtype(dtype).device(mesh->device());
  BelowGuard guard;
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
