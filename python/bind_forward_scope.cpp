#include "python/bindings.h"
#include "runtime/api/forward_scope.h"
#include "runtime/dispatch/plain_operand.h"

#include <functional>
#include <memory>
#include <optional>
#include <tuple>

namespace shardwise {
namespace {

/// A reference to a Python frame.
class ProgramFrame {
 public:
  explicit ProgramFrame(py::object frame)
      : frame_(frame.release().ptr(), [](PyObject* held) {
          if (!Py_IsInitialized()) return;  // on a thread that ends after the interpreter
          const py::gil_scoped_acquire gil;
          Py_DECREF(held);
        }) {}

  /// True if the frame is in this thread's call stack.
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

using GivenArgument = std::tuple<std::string, std::optional<at::Tensor>, std::string, std::string>;

void open_forward(int64_t module, const std::string& name, std::shared_ptr<ComparedCalls> calls,
                  std::vector<GivenArgument> given, py::object frame) {
  std::vector<ForwardArgument> arguments;
  if (!ImplicitReplication::is_on())
    for (auto& [path, tensor, type, text] : given)
      arguments.push_back({std::move(path), tensor.value_or(at::Tensor()), std::move(type), std::move(text)});
  std::function<bool()> is_running;
  if (!frame.is_none()) is_running = [held = ProgramFrame(std::move(frame))] { return held.is_running(); };
  const py::gil_scoped_release no_gil;
  ForwardScope::open(module, name, std::move(calls), arguments, std::move(is_running));
}

}  // namespace

void bind_forward_scope(py::module_& module) {
  py::class_<ComparedCalls, std::shared_ptr<ComparedCalls>>(
      module, "ComparedCalls", "The calls of a module with these tensors that the ranks have compared.")
      .def(py::init([](const std::vector<at::Tensor>& tensors) {
             return std::make_shared<ComparedCalls>(meshes_of(tensors));
           }),
           py::arg("tensors"));
  module.attr("MOST_ARGUMENTS") = kMostArguments;
  module.def("join_forward", &ForwardScope::join, py::arg("module"),
             "False if this thread is in no forward. Counts calls of the module that opened the forward.");
  define_with_gil(
      module, "open_forward", open_forward, py::arg("module"), py::arg("name"), py::arg("calls"), py::arg("arguments"),
      py::arg("frame") = py::none(),
      "This thread is in the forward of a module, which was called with these plain arguments: each one's place, "
      "and the\n"
      "tensor, or the type and the text of a number. The ranks compare them, unless they know the signature or "
      "work under\n"
      "implicit_replication(). The forward has ended where `frame` is given and is not among the thread's calls.");
  module.def("leave_forward", &ForwardScope::leave, py::arg("module"),
             "Closes the forward with the last call of the module that opened it.");
}

}  // namespace shardwise
