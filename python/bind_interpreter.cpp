// Hooks by which the runtime, which knows no Python, asks the interpreter who calls, and releases its lock.
#include "python/package.h"
#include "runtime/comm/caller.h"
#include "runtime/comm/gil_release.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shardwise {
namespace {

bool is_interpreter_there() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

std::string string_of(PyObject* text) {
  const char* const bytes = text ? PyUnicode_AsUTF8(text) : nullptr;
  if (bytes == nullptr) PyErr_Clear();
  return bytes ? bytes : "?";
}

std::string folder_of_torch() {
  const auto path = py::module_::import("torch").attr("__file__").cast<std::string>();
  return path.substr(0, path.rfind('/') + 1);
}

/// A running Python function.
class Frame {
 public:
  explicit Frame(PyFrameObject* frame) : frame_(frame), code_(own(PyFrame_GetCode(frame))) {}

  std::string file() const { return string_of(code()->co_filename); }
  /// "train.py:12 in step".
  std::string words() const {
    return fmt::format("{}:{} in {}", file(), PyFrame_GetLineNumber(frame_), string_of(code()->co_qualname));
  }
  py::object caller() const { return own(PyFrame_GetBack(frame_)); }

 private:
  template <class Object>
  static py::object own(Object* object) {
    return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
  }
  const PyCodeObject* code() const { return reinterpret_cast<const PyCodeObject*>(code_.ptr()); }

  PyFrameObject* frame_;
  py::object code_;
};

/// Calls `visit(frame)` from `innermost` outwards until it returns true.
template <class Visit>
void visit_frames(py::object innermost, const Visit& visit) {
  while (innermost && !innermost.is_none()) {
    const Frame frame(reinterpret_cast<PyFrameObject*>(innermost.ptr()));
    if (visit(frame)) return;
    innermost = frame.caller();
  }
}

bool is_of_a_library(const std::string& file) {
  static const auto* const libraries = new std::vector<std::string>{folder_of_torch(), package().folder, "<frozen "};
  return std::ranges::any_of(*libraries, [&](const std::string& library) { return file.starts_with(library); });
}

std::string program_line() {
  if (!is_interpreter_there()) return "";
  const py::gil_scoped_acquire gil;
  std::string found;
  auto* const frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  visit_frames(py::reinterpret_borrow<py::object>(frame), [&](const Frame& frame) {
    if (is_of_a_library(frame.file())) return false;
    found = frame.words();
    return true;
  });
  return found;
}

CallerStack stack_of_thread(uint64_t thread) {
  if (!is_interpreter_there()) return {{}, "", "the interpreter has ended"};
  const py::gil_scoped_acquire gil;
  CallerStack stack;
  try {
    const py::dict frames = py::module_::import("sys").attr("_current_frames")();
    py::object key = py::int_(thread);
    if (!frames.contains(key))  // an autograd thread, for which the main thread waits
      key = py::module_::import("threading").attr("main_thread")().attr("ident");
    if (!frames.contains(key)) return {{}, "", "no thread with Python"};
    visit_frames(frames[key], [&](const Frame& frame) {
      stack.lines.push_back(frame.words());
      if (stack.program_line.empty() && !is_of_a_library(frame.file())) stack.program_line = stack.lines.back();
      return false;
    });
  } catch (const py::error_already_set&) {
    stack.why_unknown = "Python raised an error when it was asked";
  }
  return stack;
}

/// Releases the GIL if the interpreter still exists: meshes may be freed after it.
void* release_gil() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

void take_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void bind_interpreter(py::module_& module) {
  module.def("program_line", &program_line,
             "The innermost line outside of torch and this package: \"train.py:12 in step\"; or \"\".");
  module.def("is_of_a_library", &is_of_a_library, py::arg("file"),
             "Whether a file is of torch, of this package or of the interpreter.");
  static constexpr CallerHooks kCallerHooks{&program_line, &stack_of_thread};
  static constexpr GilHooks kGilHooks{&release_gil, &take_gil};
  set_caller_hooks(&kCallerHooks);
  set_gil_hooks(&kGilHooks);
}

}  // namespace shardwise
