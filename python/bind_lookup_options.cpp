#include "ops/embedding/lookup_options.h"
#include "python/bindings.h"
#include "python/scope.h"

#include <memory>
#include <string>

namespace shardwise {

void bind_lookup_options(py::module_& module) {
  using Scope = PyScope<LookupScope, LookupOptions>;
  bind_scope<LookupScope, LookupOptions>(
      module, "lookup_exchange",
      "In a `with` block, how this thread's lookups go about a table that is cut along a mesh dim. `exchange`:\n"
      "- \"all_to_all\": ids go to the ranks that own their rows, each id once, and rows come back to where ids live; "
      "ids that all have need not be sent;\n"
      "- \"reduce_scatter\": every rank gathers the ids, and what the ranks found is reduced to where ids live; of ids "
      "that all have a Partial is left, and nothing is sent until it is used;\n"
      "- \"auto\": the faster by the default link's latency and bandwidth; rows of ids that all have come to all.\n"
      "Bags of ids that all have are pooled and left Partial by every one of them. Backwards go by the options of "
      "their forward.\n"
      "`check_ids=False`: ids out of range are no error but give zeros, and nobody compares replicated ids: ranks "
      "whose ids differ may wait for each other for ever.\n"
      "Raises ValueError for another name.")
      .def(py::init([](const std::string& exchange, bool check_ids) {
             return std::make_unique<Scope>(LookupOptions{to_lookup_exchange(exchange), check_ids});
           }),
           py::arg("exchange") = "auto", py::kw_only(), py::arg("check_ids") = true);
}

}  // namespace shardwise
