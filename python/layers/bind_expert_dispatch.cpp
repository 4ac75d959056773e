#include "python/bindings.h"
#include "wrappers/expert_dispatch.h"

namespace shardwise {
namespace {

constexpr const char* kDispatch =
    R"(Sends each token to the ranks of its experts. Each rank gets the rows for its own experts, ordered by expert.

- `tokens`: [n_tokens, features]. Plain tensors are this rank's tokens, any number or none. DTensors that are not sharded by token are first
  moved.
- `expert_ids`: [n_tokens, n_choices] or [n_tokens], integers. `weights`: the same shape, or None.
- `experts`: one of the experts' parameters, a DTensor sharded by expert along dim 0 on a mesh of one dim. It says which rank has which
  expert. The number of experts need not divide by the number of ranks.

DTensors are on that mesh, or on a mesh of several dims of which it is a slice, such as mesh["ep"]. In the second case the tokens of the ranks
along "ep" go to the experts there, and the result is on mesh["ep"]; combine_tokens() restores the layout of the tokens.

A token is sent once to each rank that has experts of it. No token is dropped or padded. Differentiable in `tokens` and `weights`.
Collective over the mesh: one message of a few numbers, and one per pair of ranks with tokens for each other. Raises ValueError for
shapes and layouts that do not fit and IndexError for an expert that does not exist, alike on all ranks, and NotImplementedError
outside the mesh.

>>> weight = sw.rand(4, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])  # an expert per rank
>>> tokens = torch.full((1, 2), float(rank))
>>> routed = sw.parallel.dispatch_tokens(tokens, torch.tensor([[0, 3]]), experts=weight)  # all ranks want 0 and 3
>>> routed.rows.placements, routed.offs.to_local()
((Shard(0, sizes=[4, 0, 0, 4]),), tensor([4, 4, 4, 8], dtype=torch.int32))
>>> rows = torch.nn.functional.grouped_mm(routed.rows, weight, offs=routed.offs)  # sends nothing
>>> sw.parallel.combine_tokens(rows, routed).shape  # the sum over both experts, for this rank's token
torch.Size([1, 3]))";

constexpr const char* kCombine =
    R"(The reverse of dispatch_tokens(): sends rows back and adds up those of each token, on the rank that the token came from.

`rows`: one for each of `routed.rows`, in their order, of any number of features: a DTensor, or this rank's part as a torch.Tensor.
The result is laid out as the tokens were (replicated where they were Partial), and a torch.Tensor where they were. Sums of narrow
floats are taken in float32. Differentiable. Collective over the mesh: one message per pair of ranks, before which ranks tell each
other what their plain rows are. Raises ValueError for rows that do not fit, alike on all ranks.

>>> weight = sw.rand(4, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])
>>> routed = sw.parallel.dispatch_tokens(torch.ones(1, 2), torch.tensor([[0, 3]]), experts=weight)
>>> sw.parallel.combine_tokens(routed.rows, routed)  # once for each expert
tensor([[2., 2.]]))";

constexpr const char* kRouted = R"(The result of dispatch_tokens(), as DTensors on the mesh of the experts.

`rows`: [n_rows, features], ordered by expert, then by token; `weights`: [n_rows], or None; `expert_ids`: [n_rows]: Shard(0, sizes=...)
by how many rows the experts of each rank have. `num_tokens_per_expert` and their sums `offs`, as grouped_mm takes them: replicated.

>>> weight = sw.rand(6, 2, 3, device_mesh=mesh, placements=[sw.Shard(0)])  # 2, 2, 2 and 0 experts
>>> routed = sw.parallel.dispatch_tokens(torch.ones(1, 2), torch.tensor([rank]), experts=weight)
>>> routed.rows.placements, routed.num_tokens_per_expert.to_local()
((Shard(0, sizes=[2, 2, 0, 0]),), tensor([1, 1, 1, 1, 0, 0])))";

}  // namespace

void bind_expert_dispatch(py::module_& module) {
  py::class_<RoutedTokens>(module, "RoutedTokens", kRouted)
      .def_readonly("rows", &RoutedTokens::rows)
      .def_readonly("weights", &RoutedTokens::weights)
      .def_readonly("expert_ids", &RoutedTokens::expert_ids)
      .def_readonly("num_tokens_per_expert", &RoutedTokens::num_tokens_per_expert)
      .def_readonly("offs", &RoutedTokens::offs);
  define(module, "dispatch_tokens", &dispatch_tokens, kDispatch, py::arg("tokens"), py::arg("expert_ids"),
         py::arg("weights") = py::none(), py::kw_only(), py::arg("experts"));
  define(module, "combine_tokens", &combine_tokens, kCombine, py::arg("rows"), py::arg("routed"));
}

}  // namespace shardwise
