#include "python/thread_recording.h"
#include "python/torch_world.h"
#include "runtime/comm/clock_offsets.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_profile.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/gathered_texts.h"
#include "runtime/dispatch/op_profile.h"

#include <torch/csrc/Exceptions.h>

#include <numeric>
#include <optional>

namespace shardwise {
namespace {

struct ProfileRecording {
  void stop() {
    ops.stop();
    comm.stop();
    sent.reset();
  }
  std::optional<CommTrace> sent = std::make_optional<CommTrace>();  // names the collectives that exchanges amount to
  CommProfile comm;
  OpProfile ops;
};

/// A getter of Python's Profile that calls `look` with the recording.
template <class Look>
auto seen_by(const Look& look) {
  return [look](const ThreadRecording<ProfileRecording>& self) { return self.see(look); };
}

GroupPtr everyone() {
  const auto world = python_world();
  std::vector<int64_t> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world->group(ranks);
}

}  // namespace

void bind_profile(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<TimedOperator>(module, "TimedOperator",
                            "One call of an operator on one rank. Times are nanoseconds since 1970.")
      .def_property_readonly("op", [](const TimedOperator& self) { return self.record->op; })
      .def_property_readonly("rule", [](const TimedOperator& self) { return self.record->rule; })
      .def_property_readonly("given", [](const TimedOperator& self) { return self.record->given; })
      .def_property_readonly("used", [](const TimedOperator& self) { return self.record->used; })
      .def_property_readonly("results", [](const TimedOperator& self) { return self.record->results; })
      .def_readonly("begin_ns", &TimedOperator::begin_ns)
      .def_readonly("end_ns", &TimedOperator::end_ns)
      .def_readonly("n_collectives", &TimedOperator::n_collectives)
      .def_readonly("bytes_received", &TimedOperator::bytes_received, "By this rank.");
  py::class_<TimedCommunication>(module, "TimedCommunication",
                                 "One communication on one rank. Times are nanoseconds since 1970.")
      .def_readonly("collective", &TimedCommunication::collective)
      .def_readonly("op", &TimedCommunication::op, "The operator that it is for, or \"\".")
      .def_readonly("layouts", &TimedCommunication::layouts, "What is moved, or \"\".")
      .def_readonly("source", &TimedCommunication::source, "The program's line.")
      .def_readonly("dtype", &TimedCommunication::dtype)
      .def_readonly("is_asked_for", &TimedCommunication::is_asked_for,
                    "False if an operator moved its operands on its own.")
      .def_readonly("ranks", &TimedCommunication::ranks, "The group's.")
      .def_readonly("call", &TimedCommunication::call, "Its number among the group's; 0 where members may stay away.")
      .def_readonly("bytes_sent", &TimedCommunication::bytes_sent)
      .def_readonly("bytes_received", &TimedCommunication::bytes_received)
      .def_readonly("begin_ns", &TimedCommunication::begin_ns)
      .def_readonly("end_ns", &TimedCommunication::end_ns)
      .def_readonly("waited_ns", &TimedCommunication::waited_ns, "How long this rank's thread waited.")
      .def_readonly("has_failed", &TimedCommunication::has_failed);
  bind_recording<ProfileRecording>(module, "Profile", "profile",
                                   "Times the operators and communications of this thread between open() and close().")
      .def("operators", seen_by([](const ProfileRecording& seen) { return seen.ops.operators(); }))
      .def("communications", seen_by([](const ProfileRecording& seen) { return seen.comm.communications(); }))
      .def("n_operators", seen_by([](const ProfileRecording& seen) { return seen.ops.size(); }))
      .def("n_communications", seen_by([](const ProfileRecording& seen) { return seen.comm.size(); }));
  module.def("world_rank", wrap_pybind_function_no_gil([] {
               const auto world = World::maybe_current();
               return world ? world->rank() : 0;
             }),
             "This rank's number; 0 where no ranks have been started.");
  module.def("clock_offsets", wrap_pybind_function_no_gil([] { return clock_offsets(*everyone()); }),
             "Nanoseconds by which each rank's clock is ahead of that of rank 0. Collective over all ranks.");
  module.def(
      "gathered_texts",
      [](const std::string& text) {
        std::vector<std::string> texts;
        {
          const py::gil_scoped_release no_gil;
          texts = gathered_texts(*everyone(), text);
        }
        std::vector<py::bytes> result(texts.begin(), texts.end());
        return result;
      },
      py::arg("text"), "The texts of all ranks, on rank 0; empty on all other ranks. Collective.");
  module.def("told_by_rank_0", wrap_pybind_function_no_gil([](int64_t number) {
               return all_gather_numbers(*everyone(), {number})[0][0];
             }),
             py::arg("number"), "The number of rank 0, on all ranks. Collective.");
}

}  // namespace shardwise
