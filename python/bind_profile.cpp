#include "python/bindings.h"
#include "python/torch_world.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/clock_offsets.h"
#include "runtime/comm/collectives.h"

#include <torch/csrc/Exceptions.h>

#include <numeric>

namespace shardwise {
namespace {

GroupPtr everyone() {
  const auto world = python_world();
  std::vector<int64_t> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world->group(ranks);
}

}  // namespace

void bind_profile(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
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
