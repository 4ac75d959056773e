#include "python/bindings.h"
#include "runtime/threads/thread_world.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {

void bind_thread_world(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  using Seconds = std::chrono::duration<double>;
  py::class_<ThreadHub, std::shared_ptr<ThreadHub>>(module, "ThreadHub",
                                                    "The ranks of one program whose ranks are threads of this process.")
      .def(py::init([](int64_t n_ranks, double timeout) {
             return std::make_shared<ThreadHub>(
                 n_ranks, std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(timeout)));
           }),
           py::arg("n_ranks"), py::arg("timeout"))
      .def("enter",
           wrap_pybind_function_no_gil([](ThreadHub& hub, int64_t rank) { World::set_thread(hub.world(rank)); }),
           py::arg("rank"), "This thread is `rank` from now on.")
      .def("leave", wrap_pybind_function_no_gil([](ThreadHub&) { World::set_thread(nullptr); }),
           "This thread is no rank any more.")
      .def("finish", wrap_pybind_function_no_gil(&ThreadHub::finish), py::arg("rank"),
           "`rank` takes part no more; those who wait for it raise.")
      .def("abort", wrap_pybind_function_no_gil(&ThreadHub::abort), py::arg("rank"), py::arg("reason"),
           "`rank` has failed; those who wait for it raise. True for the first to fail.");
}

}  // namespace shardwise
