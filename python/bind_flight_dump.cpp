#include "python/bindings.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/flight_watch.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {

void bind_flight_dump(py::module_& module) {
  start_flight_watch_if_asked();
  module.def("dump_folder", [] { return dump_folder().string(); }, "The default folder of files.");
  module.def("dump_flights", torch::wrap_pybind_function_no_gil([](const std::optional<std::string>& folder) {
               return dump_flights(folder ? std::filesystem::path(*folder) : dump_folder(), "asked for");
             }),
             py::arg("folder") = py::none(),
             "Writes the last communications of each rank of this process to a file; returns the files' paths.");
}

}  // namespace shardwise
