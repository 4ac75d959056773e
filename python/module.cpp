// python/module.cpp: shardwise._C, from every bind_<name>.cpp of python/ and python/layers/.
#include "python/bindings.h"
#include "runtime/tensor/device_mesh.h"

#define SHARDWISE_BINDING(name)          \
  namespace shardwise {                  \
  void bind_##name(py::module_& module); \
  }
#include <binding_list.inc>
#undef SHARDWISE_BINDING

namespace {

/// Translates C++ exceptions (c10::ValueError to ValueError) in constructors and argument conversions, which torch's wrapper of functions does not
/// cover.
void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const py::error_already_set&) {
    throw;
  } catch (const shardwise::UnknownMeshDim& error) {
    py::set_error(PyExc_KeyError, error.what_without_backtrace());
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch");
  py::register_local_exception_translator(&translate);
#define SHARDWISE_BINDING(name) shardwise::bind_##name(module);
#include <binding_list.inc>
#undef SHARDWISE_BINDING
  // The public classes are imported from the package. The others, which are in _C alone, get its name too.
  for (const auto& [name, bound] : module.attr("__dict__").cast<py::dict>())
    if (py::isinstance<py::type>(bound)) bound.attr("__module__") = "shardwise";
}
