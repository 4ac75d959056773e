#include "python/bindings.h"
#include "runtime/comm/gil_release.h"

namespace shardwise {
namespace {

/// Releases the GIL if the interpreter still exists: meshes may be freed after it.
void* release_gil() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

void take_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void bind_gil_release(py::module_& /*module*/) {
  static constexpr GilHooks kHooks{&release_gil, &take_gil};
  set_gil_hooks(&kHooks);
}

}  // namespace shardwise
