#include "python/bindings.h"
#include "runtime/api/rank_generator.h"
#include "text/check.h"
#include "threads/thread_ranks.h"
#include "threads/thread_world.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <optional>

namespace shardwise {

void bind_thread_world(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  using Seconds = std::chrono::duration<double>;
  py::class_<ThreadHub, std::shared_ptr<ThreadHub>>(module, "ThreadHub",
                                                    "The ranks of one program whose ranks are threads of this process.")
      .def(py::init([](int64_t n_ranks, double timeout, std::optional<bool> strict) {
             SW_CHECK_VALUE(timeout > 0,
                            "[run_ranks] timeout is {}: ranks wait for each other. Give seconds above 0, or math.inf.",
                            timeout);
             const Seconds patience(std::min(timeout, 1e9));
             const auto timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
             if (!strict) return std::make_shared<ThreadHub>(n_ranks, timeout_ms);
             const bool was_strict = set_strict_threads(*strict);
             const auto restore = c10::make_scope_exit([&] { set_strict_threads(was_strict); });
             return std::make_shared<ThreadHub>(n_ranks, timeout_ms);
           }),
           py::arg("n_ranks"), py::arg("timeout"), py::arg("strict") = py::none())
      .def("enter",
           wrap_pybind_function_no_gil([](ThreadHub& hub, int64_t rank) { World::set_thread(hub.world(rank)); }),
           py::arg("rank"), "This thread is `rank` from now on.")
      .def("leave", wrap_pybind_function_no_gil([](ThreadHub&) { World::set_thread(nullptr); }),
           "This thread is no rank any more.")
      .def("finish", wrap_pybind_function_no_gil(&ThreadHub::finish), py::arg("rank"),
           "`rank` takes part no more; ranks that wait for it raise.")
      .def("abort", wrap_pybind_function_no_gil(&ThreadHub::abort), py::arg("rank"), py::arg("reason"),
           "`rank` has failed; ranks that wait for it raise. True for the first rank to fail.");
  module.def("is_thread_rank", wrap_pybind_function_no_gil(&World::is_thread),
             "Whether this thread is a rank of its own.");
  module.def("rank_state", wrap_pybind_function_no_gil(&rank_state),
             "The state of the generator that this thread's DTensors draw from.");
  module.def("set_rank_state", wrap_pybind_function_no_gil(&set_rank_state), py::arg("state"),
             "Sets the state of this thread's generator.");
  module.def("seed_rank", wrap_pybind_function_no_gil(&seed_rank), py::arg("seed"), "Seeds this thread's generator.");
}

}  // namespace shardwise
