#include "python/bindings.h"
#include "wrappers/expert_dispatch.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

constexpr const char* kDispatch =
    "Sends each token to the ranks of its experts. Each rank gets the rows for its own experts, ordered by expert.\n\n"
    "- `tokens`: [n_tokens, features]. Plain tensors are this rank's tokens, any number or none. DTensors that are not "
    "sharded by token are first\n"
    "  moved.\n"
    "- `expert_ids`: [n_tokens, n_choices] or [n_tokens], integers. `weights`: the same shape, or None.\n"
    "- `experts`: one of the experts' parameters, a DTensor sharded by expert along dim 0 on a mesh of one dim. It "
    "says which rank has which\n"
    "  expert. The number of experts need not divide by the number of ranks.\n\n"
    "DTensors are on that mesh, or on a mesh of several dims of which it is a slice, such as mesh[\"ep\"]. In the "
    "second case the tokens of the ranks\n"
    "along \"ep\" go to the experts there, and the result is on mesh[\"ep\"]; combine_tokens() restores the layout of "
    "the tokens.\n\n"
    "A token is sent once to each rank that has experts of it. No token is dropped or padded. Differentiable in "
    "`tokens` and `weights`.\n"
    "Collective over the mesh: one message of a few numbers, and one per pair of ranks with tokens for each other. "
    "Raises ValueError for\n"
    "shapes and layouts that do not fit and IndexError for an expert that does not exist, alike on all ranks, and "
    "NotImplementedError\n"
    "outside the mesh.\n\n"
    ">>> weight = sw.rand(4, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])  # an expert per rank\n"
    ">>> tokens = torch.full((1, 2), float(rank))\n"
    ">>> routed = sw.parallel.dispatch_tokens(tokens, torch.tensor([[0, 3]]), experts=weight)  # all ranks want 0 and "
    "3\n"
    ">>> routed.rows.placements, routed.offs.to_local()\n"
    "((Shard(0, sizes=[4, 0, 0, 4]),), tensor([4, 4, 4, 8], dtype=torch.int32))\n"
    ">>> rows = torch.nn.functional.grouped_mm(routed.rows, weight, offs=routed.offs)  # sends nothing\n"
    ">>> sw.parallel.combine_tokens(rows, routed).shape  # the sum over both experts, for this rank's token\n"
    "torch.Size([1, 3])";

constexpr const char* kCombine =
    "The reverse of dispatch_tokens(): sends rows back and adds up those of each token, on the rank that the token "
    "came from.\n\n"
    "`rows`: one for each of `routed.rows`, in their order, of any number of features: a DTensor, or this rank's part "
    "as a torch.Tensor.\n"
    "The result is laid out as the tokens were (replicated where they were Partial), and a torch.Tensor where they "
    "were. Sums of narrow\n"
    "floats are taken in float32. Differentiable. Collective over the mesh: one message per pair of ranks, before "
    "which ranks tell each\n"
    "other what their plain rows are. Raises ValueError for rows that do not fit, alike on all ranks.\n\n"
    ">>> weight = sw.rand(4, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])\n"
    ">>> routed = sw.parallel.dispatch_tokens(torch.ones(1, 2), torch.tensor([[0, 3]]), experts=weight)\n"
    ">>> sw.parallel.combine_tokens(routed.rows, routed)  # once for each expert\n"
    "tensor([[2., 2.]])";

constexpr const char* kRouted =
    "The result of dispatch_tokens(), as DTensors on the mesh of the experts.\n\n"
    "`rows`: [n_rows, features], ordered by expert, then by token; `weights`: [n_rows], or None; `expert_ids`: "
    "[n_rows]: Shard(0, sizes=...)\n"
    "by how many rows the experts of each rank have. `num_tokens_per_expert` and their sums `offs`, as grouped_mm "
    "takes them: replicated.\n\n"
    ">>> weight = sw.rand(6, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])  # 2, 2, 2 and 0 experts\n"
    ">>> routed = sw.parallel.dispatch_tokens(torch.ones(1, 2), torch.tensor([rank]), experts=weight)\n"
    ">>> routed.rows.placements, routed.num_tokens_per_expert.to_local()\n"
    "((Shard(0, sizes=[2, 2, 0, 0]),), tensor([1, 1, 1, 1, 0, 0]))";

at::Tensor weights_of(const RoutedTokens& routed) { return routed.weights; }

}  // namespace

void bind_expert_dispatch(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<RoutedTokens>(module, "RoutedTokens", kRouted)
      .def_readonly("rows", &RoutedTokens::rows)
      .def_property_readonly("weights", &weights_of)
      .def_readonly("expert_ids", &RoutedTokens::expert_ids)
      .def_readonly("num_tokens_per_expert", &RoutedTokens::num_tokens_per_expert)
      .def_readonly("offs", &RoutedTokens::offs);
  module.def("dispatch_tokens", wrap_pybind_function_no_gil(&dispatch_tokens), kDispatch, py::arg("tokens"),
             py::arg("expert_ids"), py::arg("weights") = py::none(), py::kw_only(), py::arg("experts"));
  module.def("combine_tokens", wrap_pybind_function_no_gil(&combine_tokens), kCombine, py::arg("rows"),
             py::arg("routed"));
}

}  // namespace shardwise
