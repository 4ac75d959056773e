#include "python/bindings.h"
#include "runtime/comm/gil_release.h"

#include <chrono>
#include <thread>

namespace shardwise {
namespace {

const std::thread::id importer = std::this_thread::get_id();  // ends the interpreter

bool is_interpreter_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Meshes may end after the interpreter.
void* release_gil() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

/// Python ends a thread that asks for the lock while the interpreter ends. Amid C++ that aborts the process: such a thread sleeps instead.
void take_gil(void* state) {
  while (is_interpreter_ending() && std::this_thread::get_id() != importer)
    std::this_thread::sleep_for(std::chrono::hours(1));
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

}  // namespace

void bind_gil_release(py::module_& /*module*/) {
  static constexpr GilHooks kHooks{&release_gil, &take_gil};
  set_gil_hooks(&kHooks);
}

}  // namespace shardwise
