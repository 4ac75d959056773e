#include "ops/embedding/lookup_options.h"
#include "python/casters.h"
#include "python/scope.h"

#include <string>

namespace shardwise {

void bind_lookup_options(py::module_& module) {
  using Scope = PyScope<LookupScope, LookupOptions>;
  bind_scope<LookupScope, LookupOptions>(
      module, "lookup_exchange",
      R"(A `with` block that says how this thread's lookups in sharded tables communicate. `exchange`:

- "all_to_all": ids go to the ranks that own their rows, each id once, and the rows come back. Replicated ids need not be sent.
- "reduce_scatter": every rank gathers the ids and looks up those whose rows it has; the results are reduced to the shards of the
  ids. For replicated ids the result is Partial, and nothing is sent until it is used.
- "auto": the faster of the two by `links`, (latency in us, GB/s) per mesh dim. Rows of replicated ids are sent to all ranks.

Under each of these, bags of replicated ids are pooled and stay Partial. A backward uses the options of its forward.

`check_ids=False`: ids out of range are not an error but give zeros, and replicated ids are not compared: ranks whose ids differ
may then wait for each other forever. Raises ValueError for another name.

>>> table = sw.ones(100, 4, device_mesh=mesh, placements=[sw.Shard(0)])
>>> ids = sw.distribute_tensor(torch.arange(8), mesh, [sw.Shard(0)])
>>> with sw.lookup_exchange("reduce_scatter"):
...     F.embedding(ids, table).placements
(Shard(0),))")
      .def(py::init([](const std::string& exchange, bool check_ids, const MaybeLinks& links) {
             return Scope(LookupOptions{to_lookup_exchange(exchange), check_ids, to_links(links)});
           }),
           py::arg("exchange") = "auto", py::kw_only(), py::arg("check_ids") = true, py::arg("links") = py::none());
}

}  // namespace shardwise
