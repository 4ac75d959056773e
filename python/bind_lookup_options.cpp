#include "ops/embedding/lookup_options.h"
#include "python/bindings.h"

#include <optional>
#include <string>

namespace shardwise {
namespace {

/// A LookupScope that Python opens and closes, on one thread.
class PyLookupExchange {
 public:
  PyLookupExchange(const std::string& exchange, bool check_ids) : options_{to_lookup_exchange(exchange), check_ids} {}
  void enter() { scope_.emplace(options_); }
  void exit() { scope_.reset(); }

 private:
  LookupOptions options_;
  std::optional<LookupScope> scope_;
};

}  // namespace

void bind_lookup_options(py::module_& module) {
  py::class_<PyLookupExchange>(
      module, "lookup_exchange",
      "In a `with` block, how this thread's lookups in a table get rows where the table and the ids are cut along the "
      "same mesh dim:\n"
      "\"reduce_scatter\" gathers the ids and reduces what the ranks found to where ids live; \"all_to_all\" asks the "
      "owners of rows\n"
      "for them, for each row once, and brings rows of replicated ids, which else give a Partial, to all ranks; "
      "\"auto\" takes the faster by the default link's latency and bandwidth. Backwards go by the\n"
      "options of their forward. `check_ids=False`: ids out of range are no error but give zeros, and nobody is asked "
      "about them.\n"
      "Raises ValueError for another name.")
      .def(py::init<const std::string&, bool>(), py::arg("exchange") = "auto", py::kw_only(),
           py::arg("check_ids") = true)
      .def("__enter__", &PyLookupExchange::enter)
      .def("__exit__", [](PyLookupExchange& self, const py::args&) { self.exit(); });
  module.attr("lookup_exchange").attr("__module__") = "shardwise";
}

}  // namespace shardwise
