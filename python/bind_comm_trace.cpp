#include "python/bindings.h"
#include "runtime/comm/comm_trace.h"

#include <fmt/format.h>

#include <optional>

namespace shardwise {
namespace {

/// A CommTrace that Python opens and closes, on one thread; what it saw stays.
class PyCommTrace {
 public:
  void open() { trace_.emplace(); }
  void close() {
    events_ = trace_->events();
    trace_.reset();
  }
  std::vector<CommEvent> events() const { return trace_ ? trace_->events() : events_; }

 private:
  std::optional<CommTrace> trace_;
  std::vector<CommEvent> events_;
};

}  // namespace

void bind_comm_trace(py::module_& module) {
  py::class_<CommEvent>(module, "CommEvent",
                        "One collective as one rank saw it; bytes exclude what a rank sends to itself.")
      .def_readonly("collective", &CommEvent::collective)
      .def_readonly("op", &CommEvent::op, "The operator that asked for it.")
      .def_readonly("n_ranks", &CommEvent::n_ranks)
      .def_readonly("bytes_sent", &CommEvent::bytes_sent)
      .def_readonly("bytes_received", &CommEvent::bytes_received)
      .def("__repr__", [](const CommEvent& self) {
        return fmt::format("CommEvent({} of {} ranks for {}: {} bytes sent, {} received)", self.collective,
                           self.n_ranks, self.op, self.bytes_sent, self.bytes_received);
      });
  py::class_<PyCommTrace>(module, "CommTrace", "Records the collectives of this thread between open() and close().")
      .def(py::init())
      .def("open", &PyCommTrace::open)
      .def("close", &PyCommTrace::close)
      .def("events", &PyCommTrace::events);
}

}  // namespace shardwise
