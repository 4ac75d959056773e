// python/thread_recording.h: a recording of one thread between open() and close() in Python.
#pragma once

#include "python/bindings.h"

#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace shardwise {

/// Holds a Recording, which is linked into a list of its thread, so that no other thread can remove it. If this object is destroyed on another thread
/// while it is open, the Recording is leaked, because its thread still writes to it.
template <class Recording>
class ThreadRecording {
 public:
  /// `name`: for errors, "profile".
  explicit ThreadRecording(const char* name) : name_(name) {}
  ~ThreadRecording() {
    if (is_open_ && thread_ != std::this_thread::get_id()) static_cast<void>(recording_.release());
  }
  ThreadRecording(const ThreadRecording&) = delete;
  ThreadRecording& operator=(const ThreadRecording&) = delete;

  /// Throws: c10::ValueError if it is open.
  void open() {
    TORCH_CHECK_VALUE(!is_open_, "[", name_,
                      "] is open: it records one block at a time. Make another one for a block within it.");
    recording_ = std::make_unique<Recording>();
    thread_ = std::this_thread::get_id();
    is_open_ = true;
  }
  /// A second call does nothing. Throws: c10::ValueError on another thread; it stays open then.
  void close() {
    if (!is_open_) return;
    TORCH_CHECK_VALUE(thread_ == std::this_thread::get_id(), "[", name_,
                      "] is closed on another thread than the one that opened it: it records one thread. Close it on "
                      "the thread that opened it.");
    is_open_ = false;
    recording_->stop();
  }
  /// Returns look(recording); a default value before the first open().
  template <class Look>
  auto see(const Look& look) const {
    return recording_ ? look(*recording_) : decltype(look(*recording_))();
  }

 private:
  const char* name_;
  std::unique_ptr<Recording> recording_;
  std::thread::id thread_;
  bool is_open_ = false;
};

/// A Trace of the thread that makes it. Its events remain available after stop().
template <class Trace, class Event, const std::vector<Event>& (Trace::*seen)() const>
class TraceRecording {
 public:
  void stop() {
    events_ = ((*trace_).*seen)();
    trace_.reset();
  }
  const std::vector<Event>& events() const { return trace_ ? ((*trace_).*seen)() : events_; }

 private:
  std::optional<Trace> trace_ = std::make_optional<Trace>();
  std::vector<Event> events_;
};

/// Binds a ThreadRecording with open() and close(); `title` names it in errors.
template <class Recording>
py::class_<ThreadRecording<Recording>> bind_recording(py::module_& module, const char* name, const char* title,
                                                      const char* words) {
  using Bound = ThreadRecording<Recording>;
  return py::class_<Bound>(module, name, words)
      .def(py::init([title] { return std::make_unique<Bound>(title); }))
      .def("open", &Bound::open)
      .def("close", &Bound::close);
}

}  // namespace shardwise
