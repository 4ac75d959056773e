#include "ops/indexing/window.h"

#include "runtime/comm/tracing.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Indices relative to a window of `n`, clamped to it, and which of them are not in it. As int64, because `first` may exceed int32.
struct Found {
  at::Tensor place, is_elsewhere;

  Found(const at::Tensor& index, int64_t first, int64_t n) {
    const at::Tensor relative = index.to(at::kLong).sub(first);
    place = relative.clamp(0, n - 1);
    is_elsewhere = place.ne(relative);
  }
};

/// The same for each index tensor, and the elements for which some index is not in the window. `from_end`: as for index_window().
struct FoundAll {
  std::vector<at::Tensor> places;
  at::Tensor is_elsewhere;

  FoundAll(const at::Tensor& self, at::TensorList indices, c10::IntArrayRef dims, c10::IntArrayRef firsts,
           c10::IntArrayRef sizes, bool from_end) {
    for (size_t i = 0; i < indices.size(); ++i) {
      at::Tensor index = indices[i].to(at::kLong);
      if (from_end) index = at::where(index.lt(0), index + sizes[i], index);
      const Found found(index, firsts[i], self.size(dims[i]));
      places.push_back(found.place);
      is_elsewhere = is_elsewhere.defined() ? is_elsewhere.logical_or(found.is_elsewhere) : found.is_elsewhere;
    }
  }
};

bool is_whole(const at::Tensor& self, c10::IntArrayRef dims, c10::IntArrayRef sizes) {
  for (size_t i = 0; i < dims.size(); ++i)
    if (self.size(dims[i]) != sizes[i]) return false;
  return true;
}

c10::List<std::optional<at::Tensor>> listed(int64_t n_dims, at::TensorList indices, c10::IntArrayRef dims) {
  c10::List<std::optional<at::Tensor>> list;
  list.resize(n_dims);
  for (size_t i = 0; i < dims.size(); ++i) list.set(dims[i], indices[i]);
  return list;
}

/// True for a vector of places in one dim, for which torch has faster kernels.
bool is_along_dim(at::TensorList indices, bool from_end) {
  return !from_end && indices.size() == 1 && indices[0].dim() == 1;
}

at::Tensor looked_up(const at::Tensor& self, at::TensorList indices, c10::IntArrayRef dims, bool from_end) {
  if (!is_along_dim(indices, from_end)) return at::index(self, listed(self.dim(), indices, dims));
  if (!self.is_meta()) return self.index_select(dims[0], indices[0]);
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();  // torch has no meta kernel in C++
  sizes[dims[0]] = indices[0].sym_numel();
  return self.new_empty_symint(sizes);
}

std::vector<c10::SymInt> sizes_of_result(const at::Tensor& self, const ResultDims& dims, c10::SymIntArrayRef batch) {
  std::vector<c10::SymInt> sizes;
  for (size_t i = 0; i < dims.of_self.size(); ++i)
    sizes.push_back(dims.of_self[i] < 0 ? batch[static_cast<int64_t>(i) - dims.batch_begin]
                                        : self.sym_size(dims.of_self[i]));
  return sizes;
}

/// `values` with the batch dims flattened into one, before all others.
at::Tensor by_batch(const at::Tensor& values, const at::Tensor& self, const ResultDims& dims,
                    c10::SymIntArrayRef batch) {
  const auto sizes = sizes_of_result(self, dims, batch);
  std::vector<int64_t> order;
  std::vector<c10::SymInt> flat{c10::multiply_integers(batch)};
  for (size_t i = 0; i < batch.size(); ++i) order.push_back(dims.batch_begin + static_cast<int64_t>(i));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (dims.of_self[i] < 0) continue;
    order.push_back(static_cast<int64_t>(i));
    flat.push_back(sizes[i]);
  }
  return values.expand_symint(sizes).permute(order).reshape_symint(flat);
}

/// `self` with the indexed dims first.
at::Tensor indexed_first(const at::Tensor& self, c10::IntArrayRef dims) {
  std::vector<int64_t> order = dims.vec();
  for (int64_t dim = 0; dim < self.dim(); ++dim)
    if (std::ranges::count(dims, dim) == 0) order.push_back(dim);
  return self.permute(order);
}

/// Writes the values whose indices are in the window. For graphs, in which no size may depend on values: one more place in the first indexed dim takes
/// the others.
void put_in_graph(const at::Tensor& self, const FoundAll& found, const at::Tensor& values, c10::IntArrayRef dims,
                  bool accumulate) {
  const int64_t n = self.size(dims[0]);
  std::vector<at::Tensor> places = found.places;
  places[0] = places[0].masked_fill(found.is_elsewhere, n);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dims[0]] = n + 1;
  const at::Tensor padded = self.new_zeros(sizes), part = padded.narrow(dims[0], 0, n);
  if (!accumulate) part.copy_(self);
  padded.index_put_(listed(self.dim(), places, dims), values, accumulate);
  if (accumulate)
    self.add_(part);
  else
    self.copy_(part);
}

void scatter_whole(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim,
                   std::string_view mode, bool include_self) {
  if (mode.empty())
    self.scatter_(dim, index, src);
  else if (mode == "add")
    self.scatter_add_(dim, index, src);
  else if (mode == "multiply")
    self.scatter_(dim, index, src, mode);
  else
    self.scatter_reduce_(dim, index, src, mode, include_self);
}

}  // namespace

ResultDims::ResultDims(int64_t n_dims, c10::IntArrayRef indexed, int64_t n_batch) {
  const bool adjoin = indexed.back() - indexed.front() + 1 == static_cast<int64_t>(indexed.size());
  for (int64_t dim = 0; dim < n_dims; ++dim)
    if (std::ranges::count(indexed, dim) == 0) of_self.push_back(dim);
  batch_begin = adjoin ? indexed.front() : 0;
  of_self.insert(of_self.begin() + batch_begin, n_batch, -1);
}

at::Tensor index_window(const at::Tensor& self, at::TensorList indices, c10::IntArrayRef dims, c10::IntArrayRef firsts,
                        c10::IntArrayRef sizes, bool from_end) {
  if (is_whole(self, dims, sizes)) return looked_up(self, indices, dims, from_end);
  FoundAll found(self, indices, dims, firsts, sizes, from_end);
  at::Tensor is_elsewhere = found.is_elsewhere;
  const ResultDims result_dims(self.dim(), dims, is_elsewhere.dim());
  if (self.sym_numel() == 0 || is_elsewhere.sym_numel() == 0)
    return self.new_zeros_symint(sizes_of_result(self, result_dims, is_elsewhere.sym_sizes()));
  for (int64_t i = result_dims.batch_begin + found.is_elsewhere.dim();
       i < static_cast<int64_t>(result_dims.of_self.size()); ++i)
    is_elsewhere = is_elsewhere.unsqueeze(-1);
  return looked_up(self, found.places, dims, from_end).masked_fill_(is_elsewhere, 0);
}

void put_window(const at::Tensor& self, at::TensorList indices, const at::Tensor& values, c10::IntArrayRef dims,
                c10::IntArrayRef firsts, c10::IntArrayRef sizes, bool from_end, bool accumulate) {
  if (is_whole(self, dims, sizes)) {
    // torch's meta kernels of index_add and index_copy refuse tensors without indices
    if (!is_along_dim(indices, from_end) || values.dim() != self.dim() || self.is_meta())
      self.index_put_(listed(self.dim(), indices, dims), values, accumulate);
    else if (accumulate)
      self.index_add_(dims[0], indices[0], values);
    else
      self.index_copy_(dims[0], indices[0], values);
    return;
  }
  if (self.numel() == 0 || self.is_meta()) return;
  const FoundAll found(self, indices, dims, firsts, sizes, from_end);
  if (is_tracing()) return put_in_graph(self, found, values, dims, accumulate);
  const at::Tensor is_here = found.is_elsewhere.logical_not(), here = is_here.reshape(-1).nonzero().view(-1);
  c10::List<std::optional<at::Tensor>> places;
  for (const at::Tensor& place : found.places)
    places.push_back(place.expand_as(is_here).reshape(-1).index_select(0, here));
  const ResultDims result_dims(self.dim(), dims, is_here.dim());
  const at::Tensor of_here =
      values.dim() == 0 ? values : by_batch(values, self, result_dims, is_here.sym_sizes()).index_select(0, here);
  indexed_first(self, dims).index_put_(places, of_here, accumulate);
}

at::Tensor gather_window(const at::Tensor& self, const at::Tensor& index, int64_t dim, int64_t first, int64_t size) {
  if (size == kWholeDim || self.sym_size(dim) == size) return at::gather(self, dim, index);
  if (self.sym_numel() == 0 || index.sym_numel() == 0) return self.new_zeros_symint(index.sym_sizes());
  Found found(index, first, self.sym_size(dim).expect_int());
  return at::gather(self, dim, found.place).masked_fill_(found.is_elsewhere, 0);
}

void scatter_window(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim, int64_t first,
                    int64_t size, std::string_view mode, bool include_self) {
  const at::Tensor values = src.dim() == 0 ? src.expand_symint(index.sym_sizes()) : src;
  if (size == kWholeDim || self.sym_size(dim) == size)
    return scatter_whole(self, index, values, dim, mode, include_self);
  const int64_t n = self.sym_size(dim).expect_int();
  if (self.sym_numel() == 0 || index.sym_numel() == 0) return;
  Found found(index, first, n);
  if (mode == "add" || (mode == "sum" && include_self)) {
    self.scatter_add_(dim, found.place, values.masked_fill(found.is_elsewhere, 0));
    return;
  }
  // One extra index takes the writes outside the window.
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();
  sizes[dim] = n + 1;
  const at::Tensor padded = self.new_zeros_symint(sizes);
  padded.narrow(dim, 0, n).copy_(self);
  scatter_whole(padded, found.place.masked_fill_(found.is_elsewhere, n), values, dim, mode, include_self);
  self.copy_(padded.narrow(dim, 0, n));
}

}  // namespace shardwise
