// ops/sparse/entries.cpp: sparse tensors from indices and values, their indices and values, and queries of both.
#include "ops/sparse/sparse.h"

#include "placements/partial.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/sparse.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

namespace shardwise {
namespace {

at::Tensor first_index(const Box& box, int64_t sparse_dim, c10::Device device) {
  const std::vector<int64_t> first(box.offsets.begin(), box.offsets.begin() + sparse_dim);
  return at::tensor(first, at::kLong).unsqueeze(1).to(device);
}

bool begins_at_zero(const Box& box, int64_t sparse_dim) {
  return std::all_of(box.offsets.begin(), box.offsets.begin() + sparse_dim, [](int64_t offset) { return offset == 0; });
}

/// The box's columns of `values`, which may have more.
at::Tensor columns_of(at::Tensor values, const Box& box, int64_t sparse_dim) {
  for (int64_t dim = 1; dim < values.dim(); ++dim)
    if (const int64_t of = dim + sparse_dim - 1; values.size(dim) != box.sizes[of])
      values = values.narrow(dim, box.offsets[of], box.sizes[of]);
  return values;
}

/// `values` of `box` in a tensor as wide as `of_values`, with zeros in the other columns.
at::Tensor padded(const at::Tensor& values, const Box& of_values, const Box& box, int64_t sparse_dim) {
  if (values.sizes() == of_values.sizes) return values;
  at::Tensor whole = at::zeros(of_values.sizes, values.options());
  columns_of(whole, box, sparse_dim).copy_(values);
  return whole;
}

/// The entries of the sparse tensor that gave these indices; null without one, and once they were written to.
const SparseEntries* origin_of(const at::Tensor& indices) {
  const auto* entries = maybe_dtensor(indices)->entries().get();
  return entries && !indices.is_inference() && indices._version() == 0 ? entries : nullptr;
}

at::Tensor assembled(const at::Tensor& indices, const at::Tensor& values, const SpecPtr& spec, SparseEntries entries) {
  const auto *of_indices = maybe_dtensor(indices), *of_values = maybe_dtensor(values);
  BelowAutograd guard;
  Shards pieces;
  for (size_t i = 0; i < spec->boxes().size(); ++i) {
    const Box& box = spec->boxes()[i];
    at::Tensor local = of_indices->shards()[i];
    if (!begins_at_zero(box, entries.sparse_dim)) local = local - first_index(box, entries.sparse_dim, local.device());
    at::Tensor columns = columns_of(of_values->shards()[i], box, entries.sparse_dim);
    // torch's add_ takes stride(0) for the size of an entry; a single row of a wider tensor has another stride.
    if (columns.stride(0) != c10::multiply_integers(columns.sizes().slice(1)))
      columns = columns.clone(at::MemoryFormat::Contiguous);
    pieces.push_back(at::_sparse_coo_tensor_unsafe(local, columns, box.sizes, {}, {}, {}, {}, entries.is_coalesced));
  }
  return wrap_sparse(spec, std::move(pieces), std::move(entries));
}

/// Layouts of indices and values that fit each other, and the sparse tensor's layout.
struct EntryLayout {
  Placements indices, values, result;
};

EntryLayout lay_out(const Spec& indices, const Spec& values, int64_t sparse_dim) {
  EntryLayout layout;
  bool fits = !indices.layout().in_pieces() && !values.layout().in_pieces();
  int64_t n_sharding = 0;
  for (size_t m = 0; fits && m < indices.placements().size(); ++m) {
    Placement of_indices = indices.placements()[m], of_values = values.placements()[m], result;
    if (of_indices.is_replicate() && of_values.is_shard(0)) of_indices = of_values.with_dim(1);
    if (of_indices.is_shard(1)) {
      of_values = of_indices.with_dim(0);
      result = Placement::partial();
      ++n_sharding;
    } else if (of_values.is_shard()) {
      result = of_values.with_dim(of_values.dim() - 1 + sparse_dim);
    } else {
      result = of_values;
    }
    fits = of_indices.is_replicate() || of_indices.is_shard(1);
    fits &= !of_values.is_partial() || of_values.is_linear_partial();
    layout.indices.push_back(of_indices);
    layout.values.push_back(of_values);
    layout.result.push_back(result);
  }
  if (fits && n_sharding < 2) return layout;
  const Placements everywhere(indices.placements().size());
  return {everywhere, everywhere, everywhere};
}

void check_parts(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef size) {
  TORCH_CHECK_VALUE(
      indices.dim() == 2 && values.dim() >= 1 && indices.size(1) == values.size(0) &&
          indices.size(0) + values.dim() - 1 == static_cast<int64_t>(size.size()) &&
          values.sizes().slice(1) == size.slice(indices.size(0)),
      fmt::format("[sparse_coo_tensor] indices of shape [{}] and values of shape [{}] do not make a tensor "
                  "of shape [{}]. Give indices [dims, n] and values [n, other dims...].",
                  fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "), fmt::join(size, ", ")));
}

/// The lowest and the highest index of each dim, on every rank of the mesh.
std::pair<at::Tensor, at::Tensor> bounds(const at::Tensor& indices) {
  return {full_tensor(at::amin(indices, 1)), full_tensor(at::amax(indices, 1))};
}

void check_range(const at::Tensor& indices, c10::IntArrayRef size) {
  if (indices.size(1) == 0 || !spec_of(indices)->is_member()) return;
  const auto [lowest, highest] = bounds(indices);
  for (int64_t dim = 0; dim < indices.size(0); ++dim) {
    const int64_t low = lowest[dim].item<int64_t>(), high = highest[dim].item<int64_t>();
    TORCH_CHECK_INDEX(
        low >= 0 && high < size[dim],
        fmt::format("[sparse_coo_tensor] index {} is outside dim {} of shape [{}]. Use indices in [0, {}).",
                    low < 0 ? low : high, dim, fmt::join(size, ", "), size[dim]));
  }
}

at::Tensor as_distributed(const at::Tensor& part, const MeshPtr& mesh) {
  TORCH_CHECK_VALUE(is_dtensor(part),
                    fmt::format("[sparse_coo_tensor] got a torch.Tensor of shape [{}] next to a DTensor. Wrap it with "
                                "distribute_tensor(x, mesh, [Replicate()]).",
                                fmt::join(part.sizes(), ", ")));
  TORCH_CHECK_VALUE(spec_of(part)->mesh() == mesh,
                    fmt::format("[sparse_coo_tensor] indices and values live on different meshes: {} and {}. Move one "
                                "with redistribute(mesh, ...).",
                                to_string(*mesh), to_string(*spec_of(part)->mesh())));
  return part;
}

at::Tensor sparse_of(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef size, bool is_coalesced) {
  const MeshPtr mesh = spec_of(is_dtensor(values) ? values : indices)->mesh();
  const at::Tensor of_indices = as_distributed(indices, mesh), of_values = as_distributed(values, mesh);
  check_parts(of_indices, of_values, size);
  const int64_t sparse_dim = of_indices.size(0);
  const auto dtype = of_values.scalar_type();
  if (const auto* origin = origin_of(of_indices); origin && origin->indexed->sizes() == size) {
    auto spec = Spec::intern(mesh, origin->indexed->layout(), origin->indexed->strides(), dtype);
    const auto parts = entry_specs(*spec, sparse_dim, *origin->counts);
    return assembled(of_indices, redistribute(of_values, parts.values->placements().vec()), spec,
                     {sparse_dim, is_coalesced, origin->counts});
  }
  check_range(of_indices, size);
  EntryLayout layout = lay_out(*spec_of(of_indices), *spec_of(of_values), sparse_dim);
  is_coalesced &= std::ranges::none_of(layout.result, &Placement::is_partial);
  return assembled(
      redistribute(of_indices, std::move(layout.indices)), redistribute(of_values, std::move(layout.values)),
      Spec::intern(mesh, size, std::move(layout.result), row_major_strides(size), dtype), {sparse_dim, is_coalesced});
}

// aten's operators.

at::Tensor indices_of(const at::Tensor& self) {
  const auto* impl = maybe_sparse(self);
  const Spec& spec = *impl->spec();
  const auto& entries = *impl->entries();
  const auto counts = agreed_counts(*impl);
  Shards pieces;
  BelowAutograd guard;
  for (size_t i = 0; i < spec.boxes().size(); ++i) {
    at::Tensor local = impl->shards()[i]._indices();
    if (!begins_at_zero(spec.boxes()[i], entries.sparse_dim))
      local = local + first_index(spec.boxes()[i], entries.sparse_dim, local.device());
    pieces.push_back(std::move(local));
  }
  at::Tensor result = wrap(entry_specs(spec, entries.sparse_dim, *counts).indices, std::move(pieces));
  maybe_dtensor(result)->set_entries(
      std::make_shared<SparseEntries>(SparseEntries{entries.sparse_dim, entries.is_coalesced, counts, impl->spec()}));
  return result;
}

at::Tensor values_of(const at::Tensor& self) {
  const auto* impl = maybe_sparse(self);
  const Spec& spec = *impl->spec();
  const int64_t sparse_dim = impl->entries()->sparse_dim;
  auto of_values = entry_specs(spec, sparse_dim, *agreed_counts(*impl)).values;
  Shards pieces;
  BelowAutograd guard;
  for (size_t i = 0; i < spec.boxes().size(); ++i)
    pieces.push_back(padded(impl->shards()[i]._values(), of_values->boxes()[i], spec.boxes()[i], sparse_dim));
  return wrap(std::move(of_values), std::move(pieces));
}

/// A tensor that shares the local shards: writes to one are seen by the other.
at::Tensor aliased(const at::Tensor& self) {
  const auto* impl = maybe_sparse(self);
  at::Tensor result = wrap_sparse(impl->spec(), impl->shards());
  maybe_dtensor(result)->set_entries(impl->entries());
  return result;
}

/// A Partial's entries are reduced over the ranks first.
at::Tensor coalesced(const at::Tensor& self) {
  const at::Tensor laid_out = redistribute(self, without_partial(spec_of(self)->placements()));
  const auto* impl = maybe_sparse(laid_out);
  BelowAutograd guard;
  Shards pieces;
  for (const at::Tensor& piece : impl->shards())
    pieces.push_back(piece.is_coalesced() ? piece.clone() : piece.coalesce());  // never the piece itself
  return wrap_sparse(impl->spec(), std::move(pieces), {impl->entries()->sparse_dim, true});
}

int64_t count(const at::Tensor& self) {
  const auto* impl = maybe_sparse(self);
  return entry_specs(*impl->spec(), impl->entries()->sparse_dim, *agreed_counts(*impl)).values->sizes()[0];
}

int64_t sparse_dim(const at::Tensor& self) { return maybe_sparse(self)->entries()->sparse_dim; }
int64_t dense_dim(const at::Tensor& self) { return self.dim() - sparse_dim(self); }
bool is_coalesced(const at::Tensor& self) { return maybe_sparse(self)->entries()->is_coalesced; }

void check_coalesced(const char* what, const at::Tensor& self) {
  TORCH_CHECK_VALUE(is_coalesced(self), fmt::format("[{}] the tensor is not coalesced: {}. Use coalesce() first.", what,
                                                    to_string(*spec_of(self))));
}

at::Tensor coalesced_indices(const at::Tensor& self) {
  check_coalesced("indices", self);
  return indices_of(self);
}

at::Tensor coalesced_values(const at::Tensor& self) {
  check_coalesced("values", self);
  return values_of(self);
}

at::Tensor& mark_coalesced(at::Tensor& self, bool is_coalesced) {
  auto* impl = maybe_sparse(self);
  TORCH_CHECK_VALUE(
      !is_coalesced || !impl->spec()->layout().is_partial(),
      fmt::format("[_coalesced_] a Partial is not coalesced: {}. Use coalesce().", to_string(*impl->spec())));
  impl->entries()->is_coalesced = is_coalesced;
  for (const at::Tensor& piece : impl->shards()) piece._coalesced_(is_coalesced);
  return self;
}

at::Tensor from_entries(int64_t sparse_dim, int64_t dense_dim, c10::SymIntArrayRef size, const at::Tensor& indices,
                        const at::Tensor& values, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>, std::optional<bool> is_coalesced) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  TORCH_CHECK_VALUE(
      indices.dim() == 2 && indices.size(0) == sparse_dim && values.dim() == dense_dim + 1,
      fmt::format("[sparse_coo_tensor] indices of shape [{}] and values of shape [{}] do not have {} "
                  "sparse and {} dense dims.",
                  fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "), sparse_dim, dense_dim));
  return sparse_of(indices, dtype && is_dtensor(values) ? values.to(*dtype) : values, sizes,
                   is_coalesced.value_or(false));
}

/// torch's composition reads the tensors' memory to check them, so it is composed here.
template <class Sizes>
at::Tensor from_entries_of_size(const at::Tensor& indices, const at::Tensor& values, Sizes size,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device>, std::optional<bool>, std::optional<bool> is_coalesced) {
  TORCH_CHECK_VALUE(
      indices.dim() == 2 && values.dim() >= 1,
      fmt::format("[sparse_coo_tensor] got indices of shape [{}] and values of shape [{}]. Give [dims, n] "
                  "and [n, other dims...].",
                  fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", ")));
  const auto options = values.options().layout(at::kSparse).dtype(dtype.value_or(values.scalar_type()));
  return at::symint::_sparse_coo_tensor_with_dims_and_tensors<typename Sizes::value_type>(
      indices.size(0), values.dim() - 1, size, indices, values, options, is_coalesced);
}

/// Without a size: the smallest that contains all indices.
at::Tensor from_entries_alone(const at::Tensor& indices, const at::Tensor& values, std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                              std::optional<bool> is_coalesced) {
  TORCH_CHECK_VALUE(
      is_dtensor(indices) && indices.dim() == 2 && values.dim() >= 1,
      fmt::format("[sparse_coo_tensor] got indices of shape [{}] and values of shape [{}]. Give a DTensor "
                  "[dims, n] and one [n, other dims...].",
                  fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", ")));
  TORCH_CHECK_NOT_IMPLEMENTED(spec_of(indices)->is_member(),
                              "[sparse_coo_tensor] without a size depends on values that ranks outside the mesh do not "
                              "have. Give the size.");
  Dims sizes(indices.size(0), 0);
  if (indices.size(1) > 0) {
    const at::Tensor highest = bounds(indices).second;
    for (size_t dim = 0; dim < sizes.size(); ++dim) sizes[dim] = highest[static_cast<int64_t>(dim)].item<int64_t>() + 1;
  }
  for (int64_t dim = 1; dim < values.dim(); ++dim) sizes.push_back(values.size(dim));
  return sparse_of(indices, dtype ? values.to(*dtype) : values, sizes, is_coalesced.value_or(false));
}

/// The checks under torch.sparse.check_sparse_tensor_invariants. Boxed: its arguments differ between torch versions.
void validate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t n_args = op.schema().arguments().size(), first = stack->size() - n_args;
  const at::Tensor indices = (*stack)[first].toTensor(), values = (*stack)[first + 1].toTensor();
  const std::vector<int64_t> size = (*stack)[first + 2].toIntVector();
  check_parts(indices, values, size);
  check_range(as_distributed(indices, spec_of(is_dtensor(values) ? values : indices)->mesh()), size);
  torch::jit::drop(*stack, n_args);
}

at::Tensor to_sparse(const at::Tensor& self, int64_t sparse_dim) {
  const SpecPtr& spec = spec_of(self);
  TORCH_CHECK_VALUE(sparse_dim > 0 && sparse_dim <= self.dim(),
                    fmt::format("[to_sparse] {} sparse dims of a tensor of shape [{}]. Use 1 to {}.", sparse_dim,
                                fmt::join(self.sizes(), ", "), self.dim()));
  Placements placements = without_partial(spec->placements());
  for (Placement& placement : placements)  // whether an index has an entry depends on its whole row
    if (placement.is_shard() && placement.dim() >= sparse_dim) placement = {};
  const at::Tensor laid_out = redistribute(self, placements);
  const auto* impl = maybe_dtensor(laid_out);
  for (const Box& box : impl->spec()->boxes())
    for (int64_t dim = sparse_dim; dim < self.dim(); ++dim)
      TORCH_CHECK_NOT_IMPLEMENTED(
          box.sizes[dim] == self.size(dim),
          fmt::format("[to_sparse] {} is sharded along dense dim {}. Redistribute first.", to_string(*spec), dim));
  BelowAutograd guard;
  Shards pieces;
  for (const at::Tensor& piece : impl->shards()) pieces.push_back(piece.to_sparse(sparse_dim));
  return wrap_sparse(impl->spec(), std::move(pieces), {sparse_dim, true});
}

at::Tensor to_sparse_layout(const at::Tensor& self, std::optional<at::Layout> layout, at::OptionalIntArrayRef,
                            std::optional<int64_t> dense_dim) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kSparse) == at::kSparse,
                              "[to_sparse] DTensors are strided or sparse COO. Use to_sparse() without a layout.");
  return to_sparse(self, self.dim() - dense_dim.value_or(0));
}

at::Tensor itself(const at::Tensor& self, std::optional<at::Layout> layout, at::OptionalIntArrayRef,
                  std::optional<int64_t>) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kSparse) == at::kSparse,
                              "[to_sparse] DTensors are strided or sparse COO. Use to_sparse() without a layout.");
  return self;
}

at::Tensor itself_of_dims(const at::Tensor& self, int64_t n_dims) {
  TORCH_CHECK_VALUE(n_dims == sparse_dim(self),
                    fmt::format("[to_sparse] the tensor has {} sparse dims already, not {}. Use to_dense() first.",
                                sparse_dim(self), n_dims));
  return self;
}

}  // namespace

void register_sparse_entries() {
  for (auto* kernels : {&aten_kernels(), &aten_autograd_kernels()}) {
    kernels->impl("sparse_coo_tensor.indices", &from_entries_alone);
    kernels->impl("sparse_coo_tensor.indices_size", &from_entries_of_size<at::IntArrayRef>);
    kernels->impl("_sparse_coo_tensor_unsafe", &from_entries_of_size<c10::SymIntArrayRef>);
    kernels->impl("_validate_sparse_coo_tensor_args", torch::CppFunction::makeFromBoxedFunction<&validate>());
  }
  aten_kernels().impl("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);
  aten_kernels().impl("_to_sparse", &to_sparse_layout);
  aten_kernels().impl("_to_sparse.sparse_dim", &to_sparse);

  auto& sparse = aten_sparse_kernels();
  sparse.impl("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);  // by the layout that its options ask for
  sparse.impl("_to_sparse", &itself);
  sparse.impl("_to_sparse.sparse_dim", &itself_of_dims);
  sparse.impl("_indices", &indices_of);
  sparse.impl("_values", &values_of);
  sparse.impl("indices", &coalesced_indices);
  sparse.impl("values", &coalesced_values);
  sparse.impl("_coalesce", &coalesced);
  sparse.impl("alias", &aliased);
  sparse.impl("detach", &aliased);
  sparse.impl("_nnz", &count);
  sparse.impl("sparse_dim", &sparse_dim);
  sparse.impl("_dimI", &sparse_dim);
  sparse.impl("dense_dim", &dense_dim);
  sparse.impl("_dimV", &dense_dim);
  sparse.impl("is_coalesced", &is_coalesced);
  sparse.impl("_coalesced_", &mark_coalesced);
}

}  // namespace shardwise
