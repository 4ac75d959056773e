// ops/sparse/reductions.cpp: sums, norms and any() over all values; indices without an entry count as 0.
#include "ops/families.h"
#include "ops/sparse/sparse.h"
#include "runtime/api/dtensor.h"
#include "text/check.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

at::Tensor sum_of_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return at::sum(self._values(), dtype);
}

at::Tensor any_of_all(const at::Tensor& self) { return at::any(self._values()); }

void check_all_dims(const char* op, const at::Tensor& self, at::OptionalIntArrayRef dims) {
  SW_CHECK_NOT_IMPLEMENTED(!dims || dims->empty() || static_cast<int64_t>(dims->size()) == self.dim(),
                           "[{}] of a sparse DTensor goes over all dims, not [{}] of {}. Use to_dense().", op,
                           fmt::join(*dims, ", "), self.dim());
}

at::Tensor sum_over(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  check_all_dims("sum", self, dims);
  return sum_of_all(self, dtype).view(Dims(keepdim ? self.dim() : 0, 1));
}

at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dims, bool keepdim,
                       std::optional<at::ScalarType> dtype) {
  check_all_dims("linalg_vector_norm", self, dims);
  SW_CHECK_VALUE(
      ord.toDouble() >= 0,
      "[linalg_vector_norm] order {} of a sparse DTensor depends on the zeros that it does not store. Use to_dense().",
      ord.toDouble());
  const at::Tensor values = (self.is_coalesced() ? self : at::_coalesce(self))._values();
  const Dims sizes(keepdim ? self.dim() : 0, 1);
  if (values.numel() == 0) {  // torch rejects the maximum of an empty tensor
    const MeshPtr& mesh = spec_of(self)->mesh();
    return full(sizes, 0, mesh, Placements(mesh->ndim()), dtype.value_or(c10::toRealValueType(self.scalar_type())));
  }
  return at::linalg_vector_norm(values, ord, {}, false, dtype).view(sizes);
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) { return vector_norm(self, p, {}, false, {}); }

at::Tensor norm_of_dtype(const at::Tensor& self, const std::optional<at::Scalar>& p, at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), {}, false, dtype);
}

at::Tensor norm_over(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dims, bool keepdim) {
  return vector_norm(self, p.value_or(2), dims, keepdim, {});
}

at::Tensor norm_over_of_dtype(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dims,
                              bool keepdim, at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), dims, keepdim, dtype);
}

}  // namespace

void register_sparse_reductions(RuleTable& /*table*/) {
  auto& kernels = aten_sparse_kernels();
  kernels.impl("sum", &sum_of_all);
  kernels.impl("sum.dim_IntList", &sum_over);
  kernels.impl("any", &any_of_all);
  kernels.impl("linalg_vector_norm", &vector_norm);
  kernels.impl("norm.Scalar", &norm);
  kernels.impl("norm.ScalarOpt_dtype", &norm_of_dtype);
  kernels.impl("norm.ScalarOpt_dim", &norm_over);
  kernels.impl("norm.ScalarOpt_dim_dtype", &norm_over_of_dtype);
}

}  // namespace shardwise
