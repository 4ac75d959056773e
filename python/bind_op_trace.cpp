#include "python/bindings.h"
#include "python/thread_recording.h"
#include "runtime/dispatch/op_trace.h"

#include <optional>

namespace shardwise {
namespace {

struct OpRecording {
  void stop() {
    seen = trace->records();
    trace.reset();
  }
  std::optional<OpTrace> trace = std::make_optional<OpTrace>();
  std::vector<OpRecord> seen;  // once it is stopped
};

class PyOpTrace {
 public:
  void open() { recording_.open(); }
  void close() { recording_.close(); }
  const std::vector<OpRecord>& records() const {
    static const std::vector<OpRecord> none;
    const OpRecording* recording = recording_.get();
    if (!recording) return none;
    return recording->trace ? recording->trace->records() : recording->seen;
  }

 private:
  ThreadRecording<OpRecording> recording_{"explain"};
};

}  // namespace

void bind_op_trace(py::module_& module) {
  py::class_<OpRecord>(module, "OpRecord",
                       "What dispatch made of one operator. Layouts are texts, one per tensor."
                       "\n\n"
                       ">>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])\n"
                       ">>> (record,) = sw.explain(lambda: x + x)\n"
                       "operator ...\n"
                       ">>> record.op, record.used, record.results, record.bytes_received\n"
                       "('aten::add.Tensor', [...], ['[Shard(0)]'], 0)")
      .def_readonly("op", &OpRecord::op)
      .def_readonly("rule", &OpRecord::rule, "The rule's text, or that there is none.")
      .def_readonly("given", &OpRecord::given, "The operands' layouts.")
      .def_readonly("used", &OpRecord::used, "The layouts under which the operator ran.")
      .def_readonly("results", &OpRecord::results)
      .def_readonly("n_collectives", &OpRecord::n_collectives)
      .def_readonly("bytes_received", &OpRecord::bytes_received, "By this rank.")
      .def("__repr__", [](const OpRecord& self) { return to_string({self}); });
  py::class_<PyOpTrace>(module, "OpTrace", "Records the operators of this thread between open() and close().")
      .def(py::init())
      .def("open", &PyOpTrace::open)
      .def("close", &PyOpTrace::close)
      .def("__len__", [](const PyOpTrace& self) { return self.records().size(); })
      .def("records", &PyOpTrace::records)
      .def("__str__", [](const PyOpTrace& self) { return to_string(self.records()); });
}

}  // namespace shardwise
