#include "python/bindings.h"
#include "python/casters.h"
#include "text/check.h"

#include "placements/layout.h"

#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

namespace shardwise {
namespace {

struct TensorParts {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> pad_sizes;
};

at::Tensor padded_at_end(const at::Tensor& tensor, int64_t dim, int64_t length) {
  Dims padding(2 * (tensor.dim() - dim), 0);  // pairs, from the last dim on
  padding.back() = length;
  return length == 0 ? tensor : at::constant_pad_nd(tensor, padding);
}

/// The part of `tensor` for each of `n_parts` ranks, empty if there is none. With padding all parts are as long as the longest.
TensorParts split_in_parts(const Placement& shard, const at::Tensor& tensor, int64_t n_parts, bool with_padding,
                           bool contiguous) {
  const int64_t n_dims = tensor.dim(), dim = shard.with_dim_from_zero(n_dims).dim();
  SW_CHECK_INDEX(shard.fits_dims(n_dims), "[placements] {} splits a tensor of {} dims. Use a dim in [{}, {}).",
                 to_string(shard), n_dims, -n_dims, n_dims);
  SW_CHECK_VALUE(shard.sizes().empty() || static_cast<int64_t>(shard.sizes().size()) == n_parts,
                 "[placements] {} has extents for {} ranks. Split in as many parts, not in {}.", to_string(shard),
                 shard.sizes().size(), n_parts);
  const Dims sizes = part_sizes(shard, tensor.size(dim), n_parts);
  const int64_t longest = sizes.empty() ? 0 : *std::ranges::max_element(sizes);
  TensorParts result;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    at::Tensor part = tensor.narrow(dim, begin, size);
    if (with_padding) {
      part = padded_at_end(part, dim, longest - size);
      result.pad_sizes.push_back(longest - size);
    }
    result.tensors.push_back(contiguous ? part.contiguous() : part);
    begin += size;
  }
  return result;
}

std::pair<std::vector<at::Tensor>, std::vector<int64_t>> split_tensor(const Placement& shard, const at::Tensor& tensor,
                                                                      int64_t n_parts, bool with_padding,
                                                                      bool contiguous) {
  TensorParts parts = split_in_parts(shard, tensor, n_parts, with_padding, contiguous);
  return {std::move(parts.tensors), std::move(parts.pad_sizes)};
}

at::Tensor select_part(const Placement& shard, const at::Tensor& tensor, int64_t n_parts, int64_t index,
                       bool with_padding, bool contiguous, bool clone) {
  const TensorParts parts = split_in_parts(shard, tensor, n_parts, with_padding, contiguous && !clone);
  SW_CHECK_INDEX(index >= 0 && index < n_parts, "[placements] part {} of {} does not exist. Use one in [0, {}).", index,
                 n_parts, n_parts);
  return clone ? parts.tensors[index].clone() : parts.tensors[index];
}

}  // namespace

/// Binds methods of Shard for programs that send parts themselves.
void bind_split_tensor(py::module_& module) {
  const py::object shard = module.attr("Shard");
  shard.attr("_split_tensor") =
      py::cpp_function(torch::wrap_pybind_function(&split_tensor), py::name("_split_tensor"), py::is_method(shard),
                       "(the part of `tensor` for each of `num_chunks` ranks, by how much each was padded): padded to "
                       "the longest unless told otherwise.",
                       py::arg("tensor"), py::arg("num_chunks"), py::kw_only(), py::arg("with_padding") = true,
                       py::arg("contiguous") = true);
  shard.attr("_select_split_tensor") =
      py::cpp_function(torch::wrap_pybind_function(&select_part), py::name("_select_split_tensor"),
                       py::is_method(shard), "The part of `tensor` for rank `index` of `num_chunks`.",
                       py::arg("tensor"), py::arg("num_chunks"), py::arg("index"), py::kw_only(),
                       py::arg("with_padding") = true, py::arg("contiguous") = true, py::arg("clone") = true);
}

}  // namespace shardwise
