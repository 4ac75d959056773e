#include "python/thread_recording.h"
#include "runtime/dispatch/op_trace.h"

namespace shardwise {

void bind_op_trace(py::module_& module) {
  py::class_<OpRecord>(module, "OpRecord",
                       R"(How one operator was dispatched. Layouts are texts, one per tensor.

>>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
>>> (record,) = sw.explain(lambda: x + x)
operator ...
>>> record.op, record.used, record.results, record.bytes_received
('aten::add.Tensor', [...], ['[Shard(0)]'], 0))")
      .def_readonly("op", &OpRecord::op)
      .def_readonly("rule", &OpRecord::rule, "The rule's text, or a note that there is none.")
      .def_readonly("given", &OpRecord::given, "The operands' layouts.")
      .def_readonly("used", &OpRecord::used, "The layouts under which the operator ran.")
      .def_readonly("results", &OpRecord::results)
      .def_readonly("n_collectives", &OpRecord::n_collectives)
      .def_readonly("bytes_received", &OpRecord::bytes_received, "By this rank.")
      .def("__repr__", [](const OpRecord& self) { return to_string({self}); });
  using Recording = TraceRecording<OpTrace, OpRecord, &OpTrace::records>;
  using Trace = ThreadRecording<Recording>;
  const auto records = [](const Trace& self) { return self.see([](const Recording& seen) { return seen.events(); }); };
  bind_recording<Recording>(module, "OpTrace", "explain",
                            "Records the operators of this thread between open() and close().")
      .def("__len__", [=](const Trace& self) { return records(self).size(); })
      .def("records", records)
      .def("__str__", [=](const Trace& self) { return to_string(records(self)); });
}

}  // namespace shardwise
