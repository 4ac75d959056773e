// ops/sparse/construction.cpp: sparse tensors from indices and values, and from dense tensors.
#include "ops/families.h"
#include "ops/sparse/sparse.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// The entries of the sparse tensor that these indices are from. Null if they are from none, or if they were written to since.
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
    const at::Tensor local = indices_within(of_indices->shards()[i], box);
    at::Tensor columns = columns_of(of_values->shards()[i], box, entries.sparse_dim);
    // torch's add_ assumes that stride(0) is the size of an entry, which is wrong for a single row of a wider tensor.
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
  bool fits = indices.layout().has_one_box_each() && values.layout().has_one_box_each();
  int64_t n_sharding = 0;
  for (size_t m = 0; fits && m < indices.placements().size(); ++m) {
    Placement of_indices = indices.placements()[m], of_values = values.placements()[m], result;
    if (of_indices.is_whole() && of_values.split_dim() == 0) of_indices = of_values.with_dim(1);
    if (of_indices.split_dim() == 1) {
      of_values = of_indices.with_dim(0);
      result = Placement::partial();
      ++n_sharding;
    } else if (const int64_t dim = of_values.split_dim(); dim >= 0) {
      result = of_values.with_dim(dim - 1 + sparse_dim);
    } else {
      result = of_values;
    }
    fits = (of_indices.is_whole() || of_indices.split_dim() == 1) && of_values.is_linear();
    layout.indices.push_back(of_indices);
    layout.values.push_back(of_values);
    layout.result.push_back(result);
  }
  if (fits && n_sharding < 2) return layout;
  const Placements everywhere(indices.placements().size());
  return {everywhere, everywhere, everywhere};
}

void check_parts(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef size) {
  SW_CHECK_VALUE(indices.dim() == 2 && values.dim() >= 1 && indices.size(1) == values.size(0) &&
                     indices.size(0) + values.dim() - 1 == static_cast<int64_t>(size.size()) &&
                     values.sizes().slice(1) == size.slice(indices.size(0)),
                 "[sparse_coo_tensor] indices of shape [{}] and values of shape [{}] do not make a tensor of shape "
                 "[{}]. Give indices [dims, n] and values [n, other dims...].",
                 fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "), fmt::join(size, ", "));
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
    SW_CHECK_INDEX(low >= 0 && high < size[dim],
                   "[sparse_coo_tensor] index {} is outside dim {} of shape [{}]. Use indices in [0, {}).",
                   low < 0 ? low : high, dim, fmt::join(size, ", "), size[dim]);
  }
}

at::Tensor as_distributed(const at::Tensor& part, const MeshPtr& mesh) {
  SW_CHECK_VALUE(is_dtensor(part),
                 "[sparse_coo_tensor] got a torch.Tensor of shape [{}] next to a DTensor. Wrap it with "
                 "distribute_tensor(x, mesh, [Replicate()]).",
                 fmt::join(part.sizes(), ", "));
  check_same_mesh("sparse_coo_tensor", mesh, spec_of(part)->mesh());
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
  is_coalesced &= mesh_dims_with_terms(layout.result).empty();
  return assembled(
      redistribute(of_indices, std::move(layout.indices)), redistribute(of_values, std::move(layout.values)),
      Spec::intern(mesh, size, std::move(layout.result), row_major_strides(size), dtype), {sparse_dim, is_coalesced});
}

// aten's operators.

at::Tensor from_entries(int64_t sparse_dim, int64_t dense_dim, c10::SymIntArrayRef size, const at::Tensor& indices,
                        const at::Tensor& values, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>, std::optional<bool> is_coalesced) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  SW_CHECK_VALUE(indices.dim() == 2 && indices.size(0) == sparse_dim && values.dim() == dense_dim + 1,
                 "[sparse_coo_tensor] indices of shape [{}] and values of shape [{}] do not have {} sparse and {} "
                 "dense dims. Give indices [sparse dims, n] and values [n, dense dims...].",
                 fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "), sparse_dim, dense_dim);
  return sparse_of(indices, dtype && is_dtensor(values) ? values.to(*dtype) : values, sizes,
                   is_coalesced.value_or(false));
}

/// torch's composition reads the tensors' memory to check them, so the operator is composed here instead.
template <class Sizes>
at::Tensor from_entries_of_size(const at::Tensor& indices, const at::Tensor& values, Sizes size,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device>, std::optional<bool>, std::optional<bool> is_coalesced) {
  SW_CHECK_VALUE(
      indices.dim() == 2 && values.dim() >= 1,
      "[sparse_coo_tensor] got indices of shape [{}] and values of shape [{}]. Give [dims, n] and [n, other dims...].",
      fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "));
  const auto options = values.options().layout(at::kSparse).dtype(dtype.value_or(values.scalar_type()));
  return at::symint::_sparse_coo_tensor_with_dims_and_tensors<typename Sizes::value_type>(
      indices.size(0), values.dim() - 1, size, indices, values, options, is_coalesced);
}

/// Without a size: the smallest that contains all indices.
at::Tensor from_entries_alone(const at::Tensor& indices, const at::Tensor& values, std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                              std::optional<bool> is_coalesced) {
  SW_CHECK_VALUE(is_dtensor(indices) && indices.dim() == 2 && values.dim() >= 1,
                 "[sparse_coo_tensor] got indices of shape [{}] and values of shape [{}]. Give a DTensor [dims, n] and "
                 "one [n, other dims...].",
                 fmt::join(indices.sizes(), ", "), fmt::join(values.sizes(), ", "));
  TORCH_CHECK_NOT_IMPLEMENTED(
      spec_of(indices)->is_member(),
      "[sparse_coo_tensor] without a size depends on values that ranks outside the mesh do not have. Give the size.");
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
  SW_CHECK_VALUE(sparse_dim > 0 && sparse_dim <= self.dim(),
                 "[to_sparse] {} sparse dims are impossible for a tensor of shape [{}]. Use 1 to {}.", sparse_dim,
                 fmt::join(self.sizes(), ", "), self.dim());
  const Placements given = spec->layout().joined_dim() ? without_boxes(spec->placements()) : spec->placements().vec();
  const Placements placements = replicated_where(given, [&](const Placement& each) {
    return each.terms() || each.split_dim() >= sparse_dim;  // whether an index has an entry depends on its whole row
  });
  const at::Tensor laid_out = redistribute(self, placements);
  const auto* impl = maybe_dtensor(laid_out);
  for (const Box& box : impl->spec()->boxes())
    for (int64_t dim = sparse_dim; dim < self.dim(); ++dim)
      SW_CHECK_NOT_IMPLEMENTED(box.sizes[dim] == self.size(dim),
                               "[to_sparse] {} is sharded along dense dim {}. Redistribute first.", to_string(*spec),
                               dim);
  BelowAutograd guard;
  Shards pieces;
  for (const at::Tensor& piece : impl->shards()) pieces.push_back(piece.to_sparse(sparse_dim));
  return wrap_sparse(impl->spec(), std::move(pieces), {sparse_dim, true});
}

at::Tensor to_sparse_layout(const at::Tensor& self, std::optional<at::Layout> layout, at::OptionalIntArrayRef,
                            std::optional<int64_t> dense_dim) {
  check_is_coo(layout);
  return to_sparse(self, self.dim() - dense_dim.value_or(0));
}

}  // namespace

void check_is_coo(std::optional<at::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kSparse) == at::kSparse,
                              "[to_sparse] DTensors are strided or sparse COO. Use to_sparse() without a layout.");
}

void register_sparse_construction(RuleTable& /*table*/) {
  for (auto* kernels : {&aten_kernels(), &aten_autograd_kernels()}) {
    kernels->impl("sparse_coo_tensor.indices", &from_entries_alone);
    kernels->impl("sparse_coo_tensor.indices_size", &from_entries_of_size<at::IntArrayRef>);
    kernels->impl("_sparse_coo_tensor_unsafe", &from_entries_of_size<c10::SymIntArrayRef>);
    kernels->impl("_validate_sparse_coo_tensor_args", torch::CppFunction::makeFromBoxedFunction<&validate>());
  }
  aten_kernels().impl("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);
  aten_kernels().impl("_to_sparse", &to_sparse_layout);
  aten_kernels().impl("_to_sparse.sparse_dim", &to_sparse);
  // Its options request a sparse tensor, so it is dispatched under the sparse key too.
  aten_sparse_kernels().impl("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);
}

}  // namespace shardwise
