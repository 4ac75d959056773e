#include "python/bindings.h"
#include "runtime/tensor/registrations.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/pybind_utils.h>

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

}  // namespace

void bind_attention_scope(py::module_& module) {
  define_with_gil(
      module, "exchange_attention", &exchange_attention,
      "From here on `function`, called with the operator's arguments by their names, answers\n"
      "scaled_dot_product_attention on this thread, and where its graphs are computed again; None: torch. Returns what "
      "answered it before.",
      py::arg("function"));
}

}  // namespace shardwise
