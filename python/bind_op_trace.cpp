#include "python/bindings.h"
#include "runtime/dispatch/op_trace.h"

#include <optional>

namespace shardwise {
namespace {

/// An OpTrace that Python opens and closes, on one thread; what it saw stays.
class PyOpTrace {
 public:
  void open() { trace_.emplace(); }
  void close() {
    if (!trace_) return;
    records_ = trace_->records();
    trace_.reset();
  }
  const std::vector<OpRecord>& records() const { return trace_ ? trace_->records() : records_; }

 private:
  std::optional<OpTrace> trace_;
  std::vector<OpRecord> records_;
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
