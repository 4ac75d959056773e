#include "python/bindings.h"
#include "runtime/dispatch/gradient_layout.h"

#include <torch/csrc/Exceptions.h>

#include <memory>
#include <vector>

namespace shardwise {
namespace {

/// AccumulatedGradients as a context manager of one thread, which may be nested.
class PyAccumulatedGradients {
 public:
  void enter() { open_.push_back(std::make_unique<AccumulatedGradients>()); }
  void exit(const py::object& exception, const py::object&, const py::object&) {
    TORCH_CHECK_VALUE(!open_.empty(), "[accumulate_gradients] __exit__ without __enter__. Use it in a `with` block.");
    const auto scope = std::move(open_.back());
    open_.pop_back();
    if (exception.is_none()) scope->finish();
  }

 private:
  std::vector<std::unique_ptr<AccumulatedGradients>> open_;
};

}  // namespace

void bind_gradient_layout(py::module_& module) {
  using Scope = PyAccumulatedGradients;
  py::class_<Scope>(
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
      .def(py::init())
      .def("__enter__", torch::wrap_pybind_function(&Scope::enter))
      .def("__exit__", torch::wrap_pybind_function(&Scope::exit))
      .attr("__module__") = "shardwise";
}

}  // namespace shardwise
