#include "python/scope.h"
#include "runtime/api/gradient_layout.h"
#include "runtime/api/to_local.h"
#include "runtime/dispatch/decision.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/plain_operand.h"

namespace shardwise {

void bind_dispatch(py::module_& module) {
  bind_scope<ImplicitReplication>(
      module, "implicit_replication",
      R"(A `with` block in which this thread's plain tensors next to DTensors count as replicated. Every rank must have the same values; this is not checked.

>>> x = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
>>> with sw.implicit_replication():  # the caller vouches that all ranks have the same
...     y = x + torch.tensor([1.0, 2.0])
>>> y.placements, y.full_tensor()[0]
((Shard(0),), tensor([2., 3.])))")
      .def(py::init());

  bind_scope<AccumulatedGradients>(
      module, "accumulate_gradients",
      R"(A `with` block in which gradients of several backward() calls are added up in the layouts that operators give them, for example Partial. At
the end of the block they are moved to the layouts of their parameters together: one reduction instead of one per backward(). Within the
block a Partial gradient takes the memory of the whole parameter on each rank. If an exception ends the block, gradients keep their layouts.
Collective: all ranks of the meshes must enter and leave the block.

>>> weight = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)], requires_grad=True)
>>> with sw.accumulate_gradients():
...     for _ in range(3):  # micro-batches
...         batch = sw.ones(4, 8, device_mesh=mesh, placements=[sw.Shard(0)])
...         (batch @ weight).sum().backward()
>>> weight.grad.placements, weight.grad.full_tensor()[0]
((Shard(0),), tensor([12., 12.])))")
      .def(py::init());

  module.def("set_one_element_replicas", &OneElementReplicas::set, py::arg("are_on"),
             "Process-wide, off at first: whether torch.Tensors of one element next to DTensors count as replicated "
             "while all ranks, which compare them each time, hold the same.");

  module.def(
      "set_answers_outside", &AnswersOutside::set, py::arg("are_on"),
      "Process-wide, off at first, the same on all ranks: whether a rank outside a tensor's mesh gets what the members "
      "find equal, from all ranks of the world, and a zero where it asks for its part of a tensor without dims.");

  py::class_<CacheCounters>(
      module, "CacheCounters",
      "Counts of the cache of dispatch decisions: calls that it answered, calls that were decided anew, and entries.")
      .def_readonly("hits", &CacheCounters::hits)
      .def_readonly("misses", &CacheCounters::misses)
      .def_readonly("size", &CacheCounters::size);
  module.def(
      "cache_counters", [] { return DecisionCache::of_thread().counters(); },
      "The counters of this thread's cache of dispatch decisions.\n\n"
      ">>> x = sw.ones(8, device_mesh=mesh)\n"
      ">>> y = x + x\n"
      ">>> before = sw.cache_counters().hits\n"
      ">>> y = x + x  # the same operator on the same layouts: its decision is known\n"
      ">>> sw.cache_counters().hits - before\n"
      "1");
}

}  // namespace shardwise
