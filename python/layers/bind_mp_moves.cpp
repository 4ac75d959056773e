#include "python/casters.h"
#include "wrappers/mp_moves.h"

namespace shardwise {
namespace {

MeshAxis axis_of(const at::Tensor& input, const MaybeMesh& given, const DimOrName& mesh_dim) {
  const MeshPtr mesh = given               ? *given
                       : is_dtensor(input) ? spec_of(input)->mesh()
                                           : mesh_or_world(given, c10::DeviceTypeName(input.device().type(), true));
  return {mesh, dim_of(*mesh, mesh_dim)};
}

/// mp_copy() or mp_reduce().
template <auto move>
at::Tensor move_terms(const at::Tensor& input, const MaybeMesh& mesh, const DimOrName& mesh_dim,
                      const std::string& reduce) {
  return move(input, axis_of(input, mesh, mesh_dim), reduce_from_string(reduce));
}

/// mp_scatter() or mp_gather().
template <auto move>
at::Tensor move_parts(const at::Tensor& input, int64_t dim, const MaybeMesh& mesh, const DimOrName& mesh_dim) {
  return move(input, dim, axis_of(input, mesh, mesh_dim));
}

constexpr const char* kCopy =
    R"(Returns its input in the forward, and reduces the gradient over the ranks in the backward: for a tensor that all ranks have and use.

A torch.Tensor is this rank's copy; its gradients combine by `reduce_op`. A DTensor must be Replicate() on `mesh_dim`.
`mesh`: without it the DTensor's own, that of the innermost `with mesh:`, or all ranks; `mesh_dim`: number or name.

>>> x = torch.ones(3, requires_grad=True)
>>> sw.parallel.mp_copy(x).sum().backward()
>>> x.grad  # the gradients of four copies, added
tensor([4., 4., 4.]))";

constexpr const char* kReduce =
    R"(Reduces over the ranks in the forward, and passes the gradient on in the backward. A torch.Tensor is this rank's term, combined by `reduce_op`;
a DTensor must be Partial(reduce_op) on `mesh_dim`, and becomes Replicate() there. Mesh as in mp_copy.

>>> sw.parallel.mp_reduce(torch.tensor([float(rank)]))  # 0 + 1 + 2 + 3
tensor([6.]))";

constexpr const char* kScatter =
    R"(This rank's part along `dim` of what every rank has, split as torch.chunk splits; backward gathers the parts. A DTensor becomes
Shard(dim) on `mesh_dim`. Mesh as in mp_copy.

>>> sw.parallel.mp_scatter(torch.arange(10), dim=0)
tensor([0, 1, 2]))";

constexpr const char* kGather =
    R"(The ranks' parts one after the other along `dim`, on every rank; backward takes this rank's part. Parts of torch.Tensors may
be of any extents, which are exchanged first; a DTensor must be Shard(dim) on `mesh_dim`, and becomes Replicate() there. Mesh
as in mp_copy. Raises ValueError, alike on all ranks, for parts that differ in other dims or in dtype.

>>> sw.parallel.mp_gather(torch.full((rank + 1,), rank), dim=0)  # parts may differ in length
tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3]))";

}  // namespace

void bind_mp_moves(py::module_& module) {
  const auto mesh = py::arg("mesh") = py::none();
  const auto mesh_dim = py::arg("mesh_dim") = 0;
  const auto reduce_op = py::arg("reduce_op") = "sum";
  const auto dim = py::arg("dim") = -1;
  define(module, "mp_copy", &move_terms<&mp_copy>, kCopy, py::arg("input"), mesh, mesh_dim, reduce_op);
  define(module, "mp_reduce", &move_terms<&mp_reduce>, kReduce, py::arg("input"), mesh, mesh_dim, reduce_op);
  define(module, "mp_scatter", &move_parts<&mp_scatter>, kScatter, py::arg("input"), dim, mesh, mesh_dim);
  define(module, "mp_gather", &move_parts<&mp_gather>, kGather, py::arg("input"), dim, mesh, mesh_dim);
}

}  // namespace shardwise
