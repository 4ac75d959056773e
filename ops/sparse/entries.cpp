// ops/sparse/entries.cpp: indices, values and flags of sparse tensors.
#include "ops/families.h"
#include "ops/sparse/sparse.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

/// `values` of `box` in a tensor as wide as `of_values`, with zeros in the other columns.
at::Tensor padded(const at::Tensor& values, const Box& of_values, const Box& box, int64_t sparse_dim) {
  if (values.sizes() == of_values.sizes) return values;
  at::Tensor whole = at::zeros(of_values.sizes, values.options());
  columns_of(whole, box, sparse_dim).copy_(values);
  return whole;
}

at::Tensor indices_of(const at::Tensor& self) {
  const auto* impl = maybe_sparse(self);
  const Spec& spec = *impl->spec();
  const auto& entries = *impl->entries();
  const auto counts = agreed_counts(*impl);
  Shards pieces;
  BelowAutograd guard;
  for (size_t i = 0; i < spec.boxes().size(); ++i)
    pieces.push_back(indices_of_whole(impl->shards()[i]._indices(), spec.boxes()[i]));
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

/// A tensor that shares the local shards of `self`, so that a write to one changes both.
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
  SW_CHECK_VALUE(is_coalesced(self), "[{}] the tensor is not coalesced: {}. Use coalesce() first.", what,
                 to_string(*spec_of(self)));
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
  SW_CHECK_VALUE(!is_coalesced || !impl->spec()->layout().has_terms(),
                 "[_coalesced_] a Partial is not coalesced: {}. Use coalesce().", to_string(*impl->spec()));
  impl->entries()->is_coalesced = is_coalesced;
  for (const at::Tensor& piece : impl->shards()) piece._coalesced_(is_coalesced);
  return self;
}

at::Tensor itself(const at::Tensor& self, std::optional<at::Layout> layout, at::OptionalIntArrayRef,
                  std::optional<int64_t>) {
  check_is_coo(layout);
  return self;
}

at::Tensor itself_of_dims(const at::Tensor& self, int64_t n_dims) {
  SW_CHECK_VALUE(n_dims == sparse_dim(self),
                 "[to_sparse] the tensor has {} sparse dims already, not {}. Use to_dense() first.", sparse_dim(self),
                 n_dims);
  return self;
}

}  // namespace

void register_sparse_entries(RuleTable& /*table*/) {
  auto& sparse = aten_sparse_kernels();
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
