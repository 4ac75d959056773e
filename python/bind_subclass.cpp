// Python functions that C++ calls for tensor subclasses (runtime/tensor/subclass.h).
#include "runtime/tensor/subclass.h"

#include "python/package.h"
#include "runtime/api/inner_tensors.h"
#include "runtime/comm/error_text.h"
#include "runtime/tensor/dtensor_impl.h"

#include <torch/csrc/autograd/python_variable.h>

namespace shardwise {
namespace {

py::object object_of(const at::TensorBase& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(at::Tensor(tensor)));
}

std::string text_attribute(const py::object& type, const char* name) {
  return py::cast<std::string>(py::str(type.attr(name)));
}

bool is_of_tracer(const at::TensorBase& tensor) {
  const py::gil_scoped_acquire gil;
  const std::string module = text_attribute(py::type::of(object_of(tensor)), "__module__");
  return module == "torch._subclasses.fake_tensor" || module == "torch._subclasses.functional_tensor";
}

bool holds_traced(const at::TensorBase& tensor) {
  const py::gil_scoped_acquire gil;
  return py::cast<bool>(package().holds_traced(object_of(tensor)));
}

std::string class_of_object(const at::TensorBase& tensor) {
  const py::gil_scoped_acquire gil;
  return text_attribute(py::type::of(object_of(tensor)), "__name__");
}

void put_before(const py::object& error, const std::string& words) {
  const auto arguments = py::cast<py::tuple>(error.attr("args"));
  if (arguments.empty() || !py::isinstance<py::str>(arguments[0])) {
    error.attr("add_note")(words);
    return;
  }
  py::list changed(arguments);
  changed[0] = py::str(words + py::cast<std::string>(arguments[0]));
  error.attr("args") = py::tuple(changed);
}

/// The Python error in a python_error or an error_already_set; null for other exceptions.
py::object python_error_in(const std::exception& error) {
  if (const auto* const theirs = dynamic_cast<const py::error_already_set*>(&error)) return theirs->value();
  const auto* const ours = dynamic_cast<const python_error*>(&error);
  if (!ours) return {};
  if (ours->value) return py::reinterpret_borrow<py::object>(ours->value);
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value && traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return py::reinterpret_steal<py::object>(value);
}

/// Puts `words` before the text of a Python error. If Python has the error set, sets it again.
void name_python_error(const std::exception& error, const std::string& words) {
  const py::gil_scoped_acquire gil;
  const bool is_raised = PyErr_Occurred() != nullptr;
  const py::object named = python_error_in(error);
  if (!named) return;
  put_before(named, words);
  if (is_raised) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(named.ptr())), named.ptr());
}

std::string taken_python_error(const std::exception& error) {
  const py::gil_scoped_acquire gil;
  const py::object taken = python_error_in(error);
  return taken ? py::cast<std::string>(py::str(taken)) : error_text(error);
}

/// `tensor` if it is a tensor subclass, or its only piece if that is one.
std::optional<at::Tensor> subclass_in(const at::Tensor& tensor) {
  const auto* const impl = maybe_dtensor(tensor);
  if (!impl) return is_subclass(tensor) ? std::optional(tensor) : std::nullopt;
  if (!impl->holds_subclass() || impl->local_tensors().size() != 1) return std::nullopt;
  return impl->local_tensors()[0];
}

Flattened flattened_object(const at::Tensor& object) {
  const py::gil_scoped_acquire gil;
  auto [names, inner, recipe] = py::cast<std::tuple<std::vector<std::string>, std::vector<at::Tensor>, py::bytes>>(
      package().flatten(object_of(object)));
  return {std::move(names), std::move(inner), std::string(recipe)};
}

at::Tensor unflattened_object(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes,
                              at::IntArrayRef strides) {
  const py::gil_scoped_acquire gil;
  return py::cast<at::Tensor>(
      package().unflatten(object_of(like), py::bytes(parts.recipe), parts.inner, sizes.vec(), strides.vec()));
}

bool have_same_recipe_context(const std::string& recipe, const std::string& other) {
  const py::gil_scoped_acquire gil;
  return py::cast<bool>(package().have_same_context(py::bytes(recipe), py::bytes(other)));
}

bool object_says_places(const at::Tensor& object) {
  const py::gil_scoped_acquire gil;
  return py::cast<bool>(package().says_places(object_of(object)));
}

}  // namespace

void bind_subclass(py::module_& module) {
  set_subclass_answers({&is_of_tracer, &holds_traced, &class_of_object, &name_python_error, &taken_python_error,
                        &flattened_object, &unflattened_object, &have_same_recipe_context, &object_says_places});
  define_with_gil(module, "subclass_in", &subclass_in, py::arg("tensor"));
  define(module, "inner_tensors", &inner_tensors, py::arg("tensor"));
}

}  // namespace shardwise
