#include "python/casters.h"
#include "wrappers/embedding_plan/embedding_plan.h"
#include "wrappers/embedding_plan/plan_json.h"
#include "wrappers/embedding_plan/plan_text.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

using Pair = std::pair<int64_t, int64_t>;

Pair pair_of(Interval interval) { return {interval.begin, interval.end}; }

/// "float32" for a torch.dtype or its name.
std::string dtype_name(const std::variant<std::string, at::ScalarType>& dtype) {
  std::string name;
  if (const auto* text = std::get_if<std::string>(&dtype)) {
    name = *text;
  } else {
    name = py::str(py::cast(std::get<at::ScalarType>(dtype)));
    name = name.substr(name.find('.') + 1);
  }
  element_bytes(name);
  return name;
}

EmbeddingPlan plan_tables(std::vector<TableConfig> tables, int64_t n_ranks, const std::string& strategy,
                          std::optional<int64_t> column_slice_threshold, std::optional<int64_t> row_slice_threshold,
                          std::optional<int64_t> data_parallel_threshold, std::optional<int64_t> memory_per_rank,
                          int64_t batch_per_rank, int64_t state_bytes_per_element, int64_t state_bytes_per_row,
                          std::vector<int64_t> mesh_shape, const MaybeLinks& links,
                          const std::optional<std::tuple<double, double, double>>& machine) {
  EmbeddingPlanOptions options;
  options.strategy = strategy_from_string(strategy);
  options.column_slice_threshold = column_slice_threshold;
  options.row_slice_threshold = row_slice_threshold;
  options.data_parallel_threshold = data_parallel_threshold;
  options.memory_per_rank = memory_per_rank;
  options.batch_per_rank = batch_per_rank;
  options.state_bytes_per_element = state_bytes_per_element;
  options.state_bytes_per_row = state_bytes_per_row;
  options.mesh_shape = std::move(mesh_shape);
  options.links = to_links(links);
  if (machine)
    std::tie(options.machine.memory_gb_per_s, options.machine.ns_per_row, options.machine.ns_per_segment) = *machine;
  return plan_embeddings(std::move(tables), n_ranks, options);
}

constexpr const char* kTableConfig =
    R"(The description of one embedding table [n_rows, n_columns], for the planner and the layer.

`dtype`: a torch.dtype or its name. `combiner`: "sum", "mean", "max" or "none". `ids_per_sample`: the mean number of ids per sample, over all
inputs of the table together. `skew`: the exponent of Zipf's law for ids, with row 0 the most frequent; 0 is uniform.

>>> table = sw.TableConfig("item", 50_000, 64, combiner="mean", ids_per_sample=20, skew=1.05)
>>> table.n_elements, table.dtype
(3200000, 'float32'))";

constexpr const char* kEmbeddingPlan =
    R"(Which rank holds which part of which embedding table, what that costs in a step, and why. Made by plan_embeddings.

>>> plan = sw.plan_embeddings([sw.TableConfig("user", 1000, 8), sw.TableConfig("item", 50, 8)], n_ranks=2)
>>> [table.treatment for table in plan.table_plans]
['table-parallel', 'table-parallel']
>>> plan.rank_load(0).weight_bytes
32000
>>> sw.EmbeddingPlan.from_json(plan.to_json()).n_ranks
2)";

constexpr const char* kPlanEmbeddings =
    R"(Plans which rank holds which part of which embedding table. It sends nothing, and gives the same plan on every rank.

Thresholds are in elements. A table of at most `data_parallel_threshold` is replicated. A table of at least `row_slice_threshold` is
sharded by rows over all ranks. The others are table-parallel: whole on one rank, or in N slices of columns if they exceed
`column_slice_threshold`. N is the smallest power of two at which a slice does not exceed it, and at most the number of ranks and of
columns. Without that threshold the largest slices are halved until each rank has one.

- `strategy` places the slices: "basic" on ranks in turn; "memory_balanced" sorted by bytes, forth and back over the ranks;
  "memory_optimized" largest first, each on the rank with the fewest bytes; "cost_balanced" for the least time of the most loaded rank,
  which also chooses what no threshold decides.
- `memory_per_rank`: the most bytes of tables and optimizer state on a rank. `batch_per_rank`: samples per rank and step.
- `state_bytes_per_element` and `state_bytes_per_row`: the bytes of the optimizer's state.
- `mesh_shape` and `links`: the ranks as a mesh, and (latency in us, GB/s in each direction) per mesh dim. Default: one dim, 20 us, 10 GB/s.
- `machine`: (GB/s of memory, ns to reach a row, ns per slice and asking rank). Default: 10, 20 and 50.

Raises ValueError for invalid tables and options, for fewer slices than ranks (it names the threshold to lower), and if a rank needs more
than `memory_per_rank`.

>>> tables = [sw.TableConfig("user", 1_000_000, 64, skew=1.05), sw.TableConfig("item", 50_000, 64)]
>>> plan = sw.plan_embeddings(tables, 4, strategy="cost_balanced", batch_per_rank=4096)
>>> plan.n_ranks, plan.seconds >= plan.bound_seconds
(4, True))";

void bind_table_config(py::module_& module) {
  py::class_<TableConfig>(module, "TableConfig", kTableConfig)
      .def(py::init([](std::string name, int64_t n_rows, int64_t n_columns,
                       const std::variant<std::string, at::ScalarType>& dtype, const std::string& combiner,
                       double ids_per_sample, double skew) {
             return TableConfig{std::move(name), n_rows, n_columns, dtype_name(dtype), combiner_from_string(combiner),
                                ids_per_sample,  skew};
           }),
           py::arg("name"), py::arg("n_rows"), py::arg("n_columns"), py::kw_only(), py::arg("dtype") = "float32",
           py::arg("combiner") = "sum", py::arg("ids_per_sample") = 1.0, py::arg("skew") = 0.0)
      .def_readonly("name", &TableConfig::name)
      .def_readonly("n_rows", &TableConfig::n_rows)
      .def_readonly("n_columns", &TableConfig::n_columns)
      .def_readonly("dtype", &TableConfig::dtype, "torch's name of the dtype, without \"torch.\".")
      .def_property_readonly("combiner", [](const TableConfig& self) { return to_string(self.combiner); })
      .def_readonly("ids_per_sample", &TableConfig::ids_per_sample)
      .def_readonly("skew", &TableConfig::skew)
      .def_property_readonly("n_elements", &TableConfig::n_elements)
      .def(py::self == py::self)
      .def("__repr__", [](const TableConfig& self) {
        return fmt::format("TableConfig(\"{}\", {}, {}, dtype=\"{}\", combiner=\"{}\", ids_per_sample={}, skew={})",
                           self.name, self.n_rows, self.n_columns, self.dtype, to_string(self.combiner),
                           self.ids_per_sample, self.skew);
      });
}

void bind_slices(py::module_& module) {
  py::class_<TableSlice>(module, "TableSlice", "A box of one table on one rank, and its place in a group there.")
      .def_readonly("table", &TableSlice::table, "Index of the table.")
      .def_readonly("rank", &TableSlice::rank)
      .def_property_readonly(
          "rows", [](const TableSlice& self) { return pair_of(self.rows); }, "(begin, end) of the table's rows.")
      .def_property_readonly("columns", [](const TableSlice& self) { return pair_of(self.columns); })
      .def_readonly("group", &TableSlice::group, "Index into the groups of `rank`.")
      .def_readonly("first_row", &TableSlice::first_row,
                    "The slice's offset in the group's rows, which is added to its ids.")
      .def("__repr__", [](const TableSlice& self) {
        return fmt::format("TableSlice(table={}, rank={}, rows=({}, {}), columns=({}, {}), group={}, first_row={})",
                           self.table, self.rank, self.rows.begin, self.rows.end, self.columns.begin, self.columns.end,
                           self.group, self.first_row);
      });
  py::class_<TablePlan>(module, "TablePlan", "What becomes of one table.")
      .def_property_readonly(
          "treatment", [](const TablePlan& self) { return to_string(self.treatment); },
          "\"replicated\", \"table-parallel\" or \"row-parallel\".")
      .def_property_readonly(
          "slices",
          [](const TablePlan& self) { return std::vector<TableSlice>(self.slices.begin(), self.slices.end()); },
          "By first row, then first column; one per rank for a replicated table.")
      .def_readonly("reason", &TablePlan::reason, "Why it is where it is.");
  py::class_<EmbeddingGroup>(module, "EmbeddingGroup", "Slices of one rank that are looked up together.")
      .def_readonly("is_replicated", &EmbeddingGroup::is_replicated)
      .def_readonly("n_columns", &EmbeddingGroup::n_columns)
      .def_readonly("dtype", &EmbeddingGroup::dtype)
      .def_property_readonly("combiner", [](const EmbeddingGroup& self) { return to_string(self.combiner); })
      .def_readonly("n_rows", &EmbeddingGroup::n_rows, "Of all its slices.");
  py::class_<RankLoad>(module, "RankLoad", "The load of one rank in a step.")
      .def_readonly("weight_bytes", &RankLoad::weight_bytes)
      .def_readonly("state_bytes", &RankLoad::state_bytes, "Of the optimizer.")
      .def_property_readonly("n_bytes", &RankLoad::n_bytes, "Both.")
      .def_readonly("lookups", &RankLoad::lookups, "Rows read, expected.")
      .def_readonly("exchange_bytes", &RankLoad::exchange_bytes, "Expected bytes to and from this rank.")
      .def_readonly("seconds", &RankLoad::seconds)
      .def("__repr__", [](const RankLoad& self) {
        return fmt::format(
            "RankLoad(weight_bytes={}, state_bytes={}, lookups={:.1f}, exchange_bytes={:.1f}, seconds={:.3g})",
            self.weight_bytes, self.state_bytes, self.lookups, self.exchange_bytes, self.seconds);
      });
}

void bind_plan_value(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<EmbeddingPlan>(module, "EmbeddingPlan", kEmbeddingPlan)
      .def_readonly("tables", &EmbeddingPlan::tables)
      .def_readonly("n_ranks", &EmbeddingPlan::n_ranks)
      .def_property_readonly("strategy", [](const EmbeddingPlan& self) { return to_string(self.options.strategy); })
      .def_readonly("table_plans", &EmbeddingPlan::table_plans, "One per table.")
      .def("groups", wrap_pybind_function_no_gil([](const EmbeddingPlan& self, int64_t rank) {
             self.check_rank(rank);
             return self.ranks[rank].groups;
           }),
           py::arg("rank"),
           "The groups of this rank. Groups of replicated tables come first and are equal on every rank.")
      .def("slices", wrap_pybind_function_no_gil(&EmbeddingPlan::slices_on), py::arg("rank"),
           "The slices of this rank, by group, then by first row.")
      .def("rank_load", wrap_pybind_function_no_gil([](const EmbeddingPlan& self, int64_t rank) {
             self.check_rank(rank);
             return self.ranks[rank].load;
           }),
           py::arg("rank"), "The load of this rank in a step.")
      .def_property_readonly("most_loaded_rank", &EmbeddingPlan::most_loaded_rank, "Of the longest step.")
      .def_property_readonly("heaviest_rank", &EmbeddingPlan::heaviest_rank, "Of the most bytes.")
      .def_property_readonly("seconds", &EmbeddingPlan::seconds, "Seconds of a step on the most loaded rank.")
      .def_readonly("bound_seconds", &EmbeddingPlan::bound_seconds,
                    "A lower bound of the most loaded rank's seconds, over all plans within the options.")
      .def(py::self == py::self)
      .def("picture", wrap_pybind_function_no_gil(&picture),
           "A picture in characters: tables as rows, ranks as columns.")
      .def("to_json", wrap_pybind_function_no_gil(py::overload_cast<const EmbeddingPlan&>(&to_json)),
           "A text from which from_json makes an equal plan.")
      .def_static("from_json",
                  wrap_pybind_function_no_gil([](const std::string& text) { return embedding_plan_from_json(text); }),
                  py::arg("text"), "The reverse. Raises ValueError naming the place in the text that is wrong.")
      .def("save", wrap_pybind_function_no_gil(&save_embedding_plan), py::arg("path"),
           "Writes to_json() to a file, which is replaced atomically.")
      .def_static("load", wrap_pybind_function_no_gil(&load_embedding_plan), py::arg("path"), "The plan of a file.")
      .def(py::pickle([](const EmbeddingPlan& self) { return to_json(self); },
                      [](const std::string& text) { return embedding_plan_from_json(text); }))
      .def("__str__", wrap_pybind_function_no_gil([](const EmbeddingPlan& self) { return to_string(self); }))
      .def("__repr__", [](const EmbeddingPlan& self) {
        return fmt::format("EmbeddingPlan({} tables on {} ranks, {})", self.tables.size(), self.n_ranks,
                           to_string(self.options.strategy));
      });
}

}  // namespace

void bind_embedding_plan(py::module_& module) {
  bind_table_config(module);
  bind_slices(module);
  bind_plan_value(module);
  define(module, "plan_embeddings", &plan_tables, kPlanEmbeddings, py::arg("tables"), py::arg("n_ranks"), py::kw_only(),
         py::arg("strategy") = "memory_optimized", py::arg("column_slice_threshold") = py::none(),
         py::arg("row_slice_threshold") = py::none(), py::arg("data_parallel_threshold") = py::none(),
         py::arg("memory_per_rank") = py::none(), py::arg("batch_per_rank") = 1024,
         py::arg("state_bytes_per_element") = 0, py::arg("state_bytes_per_row") = 0,
         py::arg("mesh_shape") = std::vector<int64_t>{}, py::arg("links") = py::none(),
         py::arg("machine") = py::none());
  define(
      module, "tables_from_json", [](const std::string& text) { return tables_from_json(text); }, py::arg("text"),
      "The tables of a list, or of an object with one as \"tables\", in JSON.");
}

}  // namespace shardwise
