#include "python/bindings.h"
#include "runtime/comm/traffic_meter.h"

namespace shardwise {

void bind_traffic_meter(py::module_& module) {
  py::class_<GroupTraffic>(module, "GroupTraffic")
      .def_readonly("ranks", &GroupTraffic::ranks)
      .def_readonly("n_calls", &GroupTraffic::n_calls)
      .def_readonly("bytes_sent", &GroupTraffic::bytes_sent)
      .def_readonly("bytes_received", &GroupTraffic::bytes_received)
      .def_readonly("seconds", &GroupTraffic::seconds);
  py::class_<PresentWait>(module, "PresentWait")
      .def_readonly("name", &PresentWait::name)
      .def_readonly("op", &PresentWait::op)
      .def_readonly("seconds", &PresentWait::seconds)
      .def_readonly("ranks", &PresentWait::ranks);
  py::class_<TrafficMeter>(module, "TrafficMeter")
      .def(py::init([] { return TrafficMeter(); }))
      .def("read", &TrafficMeter::read)
      .def("waits", &TrafficMeter::waits);
}

}  // namespace shardwise
