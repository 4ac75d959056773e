#include "python/bindings.h"
#include "python/scope.h"
#include "runtime/api/forward_scope.h"

#include <functional>
#include <memory>
#include <optional>
#include <tuple>

namespace shardwise {
namespace {

/// A Python frame, held.
class Frame {
 public:
  explicit Frame(py::object frame)
      : frame_(frame.release().ptr(), [](PyObject* held) {
          if (!Py_IsInitialized()) return;  // a thread that ends after Python
          const py::gil_scoped_acquire gil;
          Py_DECREF(held);
        }) {}

  /// True where it is among this thread's calls.
  bool is_running() const {
    const py::gil_scoped_acquire gil;
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame && frame.ptr() != frame_.get())
      frame = py::reinterpret_steal<py::object>(
          reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
    return static_cast<bool>(frame);
  }

 private:
  std::shared_ptr<PyObject> frame_;
};

void open_forward(int64_t module, std::string name,
                  std::vector<std::tuple<std::string, std::optional<at::Tensor>, std::string>> arguments,
                  py::object frame) {
  std::vector<ForwardArgument> plain;
  for (auto& [path, tensor, text] : arguments)
    plain.push_back({std::move(path), tensor.value_or(at::Tensor()), std::move(text)});
  std::function<bool()> is_running;
  if (!frame.is_none()) is_running = [held = Frame(std::move(frame))] { return held.is_running(); };
  ForwardScope::open(module, std::move(name), std::move(plain), std::move(is_running));
}

}  // namespace

void bind_forward_scope(py::module_& module) {
  module.def("join_forward", &ForwardScope::join, py::arg("module"),
             "False where this thread is in no forward. Calls of the module that opened it are counted.");
  module.def(
      "open_forward", &open_forward, py::arg("module"), py::arg("name"), py::arg("arguments"),
      py::arg("frame") = py::none(),
      "This thread is in the forward of a module, which was called with these plain arguments: each one's place, "
      "and the\n"
      "tensor or the text of it. The forward has ended where `frame` is given and is not among the thread's calls.");
  module.def("leave_forward", &ForwardScope::leave, py::arg("module"),
             "Closes the forward with the last call of the module that opened it.");
  module.def("forget_forward", &ForwardScope::forget, py::arg("module"),
             "The module is gone: its number may be another's from now on.");
  module.def(
      "give_out_of_forward", [](const std::string& by) { ForwardScope::give_out(by.c_str()); }, py::arg("by"),
      "`by` gave a plain tensor that need not be the same on all ranks: plain tensors in this forward are no replicas "
      "any more.");
  bind_scope<OutsideForward>(module, "outside_forward",
                             "In a `with` block, this thread is in no forward: what runs works on pieces.")
      .def(py::init());
}

}  // namespace shardwise
