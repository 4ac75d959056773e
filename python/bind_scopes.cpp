#include "python/scope.h"
#include "runtime/api/forward_scope.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/no_messages.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

namespace shardwise {
namespace {

/// A dispatch key that no tensor has and no library uses. A thread includes it while a function replaces its attention. Autograd's threads inherit
/// the key and the function from the thread that recorded the graph.
constexpr auto kAttentionKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr const char* kFunction = "attention of shardwise";

/// Calls the function of this thread. Within it, attention is torch's own.
void attend(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard torchs(kAttentionKey);
  const py::gil_scoped_acquire gil;
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  py::dict named;
  for (size_t i = 0; i < arguments.size(); ++i)
    named[arguments[i].name().c_str()] = torch::jit::toPyObject((*stack)[first + i]);
  const auto function = at::impl::ThreadLocalPythonObjects::get(kFunction);
  const py::handle callable(function->ptr(getPyInterpreter()));
  auto result = callable(**named).cast<at::Tensor>();
  stack->resize(first);
  stack->emplace_back(std::move(result));
}

void register_attention_key() {
  registrations("_", kAttentionKey).fallback(torch::CppFunction::makeFallthrough());
  registrations("aten", kAttentionKey)
      .impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&attend>());
}

/// Replaces attention on this thread by `function`; None: by torch's own. Returns the previous function.
py::object exchange_attention(const py::object& function) {
  static const bool once = (register_attention_key(), true);
  static_cast<void>(once);
  using Objects = at::impl::ThreadLocalPythonObjects;
  py::object before = py::none();
  if (Objects::contains(kFunction))
    if (const auto& kept = Objects::get(kFunction))
      before = py::reinterpret_borrow<py::object>(kept->ptr(getPyInterpreter()));
  // Null for None: torch 2.11 cannot remove a name from its list.
  std::shared_ptr<c10::SafePyObject> next;
  if (!function.is_none())
    next = std::make_shared<c10::SafePyObject>(py::object(function).release().ptr(), getPyInterpreter());
  Objects::set(kFunction, std::move(next));
  c10::impl::tls_set_dispatch_key_included(kAttentionKey, !function.is_none());
  return before;
}

CommPolicy policy_named(const std::string& name) {
  if (name == "allow") return CommPolicy::kAllow;
  if (name == "warn") return CommPolicy::kWarn;
  if (name == "error") return CommPolicy::kError;
  SW_CHECK_VALUE(false, "[communication_policy] \"{}\" is none of \"allow\", \"warn\", \"error\".", name);
}

/// The string is owned by PyScope's options, which outlive the Reading.
struct NamedReading : Reading {
  explicit NamedReading(const std::string& name) : Reading(name.c_str()) {}
};

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

void bind_scopes(py::module_& module) {
  define_with_gil(
      module, "exchange_attention", &exchange_attention,
      "From here on `function`, called with the operator's arguments by their names, answers\n"
      "scaled_dot_product_attention on this thread, and where its graphs are computed again; None: torch. Returns what "
      "answered it before.",
      py::arg("function"));
  using Policy = PyScope<CommPolicyScope, CommPolicy>;
  bind_scope<CommPolicyScope, CommPolicy>(
      module, "communication_policy",
      "A `with` block that says what happens in this thread if an operator would move an operand on its own: \"allow\" "
      "it, \"warn\", or raise\n"
      "ValueError (\"error\") on every rank, before any message. Moves that the program asks for (redistribute, "
      "full_tensor) are always allowed.\n\n"
      ">>> x = sw.DTensor.from_local(torch.ones(3), mesh, [sw.Partial()])\n"
      ">>> with sw.communication_policy(\"error\"):\n"
      "...     y = x + x  # terms are added where they are\n"
      "...     z = torch.relu(x)\n"
      "Traceback (most recent call last):\n"
      "ValueError: [aten::relu] moves Float [3] as [Partial(sum)] on (4) to [3] as [Replicate()] on 4 ranks on its "
      "own. Redistribute it beforehand, or allow it.")
      .def(py::init([](const std::string& name) { return Policy(policy_named(name)); }), py::arg("policy"));
  bind_scope<NamedReading, std::string>(
      module, "Reading",
      "A `with` block in which this thread starts no message: one that begins is an error that names both.")
      .def(py::init<std::string>(), py::arg("name"));
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
