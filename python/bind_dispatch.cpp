#include "python/bindings.h"

#include "runtime/decision.h"
#include "runtime/dispatch.h"

#include <optional>

namespace shardwise {
namespace {

/// An ImplicitReplication that Python opens and closes, on one thread.
class PyImplicitReplication {
 public:
  void enter() { guard_.emplace(); }
  void exit() { guard_.reset(); }

 private:
  std::optional<ImplicitReplication> guard_;
};

}  // namespace

void bind_dispatch(py::module_& module) {
  py::class_<PyImplicitReplication>(
      module, "implicit_replication",
      "In a `with` block, this thread's torch.Tensors next to DTensors count as replicated: every rank "
      "must hold the same values.")
      .def(py::init())
      .def("__enter__", &PyImplicitReplication::enter)
      .def("__exit__", [](PyImplicitReplication& self, const py::args&) { self.exit(); });
  module.attr("implicit_replication").attr("__module__") = "shardwise";

  py::class_<CacheCounters>(module, "CacheCounters",
                            "Of the cache of dispatch decisions: calls answered from it, calls worked out, entries.")
      .def_readonly("hits", &CacheCounters::hits)
      .def_readonly("misses", &CacheCounters::misses)
      .def_readonly("size", &CacheCounters::size);
  module.attr("CacheCounters").attr("__module__") = "shardwise";
  module.def(
      "cache_counters", [] { return DecisionCache::of_thread().counters(); }, "The counters of this thread's cache.");
}

}  // namespace shardwise
