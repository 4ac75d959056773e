#include "python/casters.h"
#include "runtime/tensor/mapped_memory.h"
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include <array>
#include <map>
#include <tuple>

namespace shardwise {
namespace {

using Layer = DistributedEmbedding;
using MaybeTensor = std::optional<at::Tensor>;
/// ids, offsets, lengths, weights.
using PyInput = std::tuple<at::Tensor, MaybeTensor, MaybeTensor, MaybeTensor>;
/// name, table, combiner.
using PyFeature = std::tuple<std::string, size_t, std::string>;
/// The kind of a Python exception, and its text.
using PyError = std::pair<std::string, std::string>;
/// By table: folder, rows and bytes of the cache.
using PyStorages = std::map<size_t, std::tuple<std::string, int64_t, int64_t>>;

std::shared_ptr<Layer> make(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                            const MeshPtr& mesh, const std::vector<PyFeature>& given, bool mean_gradients, bool sparse,
                            bool dp_input, bool concatenate, const PyStorages& storage) {
  TableStorages storages;
  for (const auto& [table, each] : storage) {
    const auto& [folder, cache_rows, cache_bytes] = each;
    storages[table] = {folder, cache_rows, cache_bytes};
  }
  std::vector<Feature> features;
  for (const auto& [name, table, combiner] : given) features.push_back({name, table, combiner_from_string(combiner)});
  const py::gil_scoped_release no_gil;
  return std::make_shared<Layer>(configs, plans, mesh, std::move(features),
                                 Layer::Options{mean_gradients, sparse, dp_input, concatenate}, storages);
}

RankError to_error(const std::optional<PyError>& error) {
  using Type = RankError::Type;
  if (!error) return {};
  const auto& [kind, text] = *error;
  return {kind == "ValueError"   ? Type::kValue
          : kind == "IndexError" ? Type::kIndex
          : kind == "TypeError"  ? Type::kType
                                 : Type::kOther,
          text};
}

std::shared_ptr<Layer::Lookup> start(Layer& layer, const std::vector<std::optional<PyInput>>& given,
                                     const std::vector<at::Tensor>& tables, const std::optional<PyError>& error) {
  Layer::Inputs inputs;
  for (const auto& input : given) {
    inputs.emplace_back();
    if (!input) continue;
    const auto& [ids, offsets, lengths, weights] = *input;
    inputs.back() = FeatureInput{ids, offsets, lengths, weights};
  }
  const py::gil_scoped_release no_gil;
  return layer.start(inputs, tables, to_error(error));
}

py::slice slice_of(const Interval& interval) { return {interval.begin, interval.end, 1}; }

std::vector<std::tuple<at::Tensor, py::slice, py::slice>> pieces(const Layer& layer, size_t table) {
  TORCH_INTERNAL_ASSERT(table < layer.lanes().tables.size(), "there is no table ", table);
  return c10::fmap(layer.pieces(table), [&](const TablePart& piece) {
    return std::tuple<at::Tensor, py::slice, py::slice>(piece.values, slice_of(piece.rows), slice_of(piece.columns));
  });
}

std::vector<std::tuple<int64_t, int64_t, int64_t>> traffic(const Layer& layer) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> result;
  for (const auto& [n_ids, n_rows, bytes] : layer.traffic()) result.emplace_back(n_ids, n_rows, bytes);
  return result;
}

std::optional<std::array<int64_t, 8>> cache_counts(const Layer& layer, size_t table) {
  const auto counts = layer.cache_counts(table);
  if (!counts) return std::nullopt;
  return std::array{counts->slots,      counts->hits,          counts->misses,      counts->evictions,
                    counts->bytes_read, counts->bytes_written, counts->value_bytes, counts->state_bytes};
}

}  // namespace

void bind_distributed_embedding(py::module_& module) {
  module.def(
      "lies_in_file", [](const at::Tensor& tensor) { return mapped_folder(tensor).has_value(); }, py::arg("tensor"),
      "Whether a plain tensor's memory is a file that tables beyond memory have made.");
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Layer, std::shared_ptr<Layer>> layer(module, "DistributedEmbedding",
                                                  "The tables and lookups of shardwise.DistributedEmbedding.");
  layer
      .def(py::init(&make), py::arg("tables"), py::arg("plans"), py::arg("mesh"), py::arg("features"),
           py::arg("mean_gradients") = true, py::arg("sparse") = false, py::arg("dp_input") = true,
           py::arg("concatenate") = false, py::arg("storage") = PyStorages{})
      .def("tables", &Layer::tables, no_gil, "The tables as DTensors over the layer's memory, uninitialised at first.")
      .def("pieces", &pieces, py::arg("table"),
           "This rank's parts of a table: (values, rows, columns), the latter as slices of the table.")
      .def("bytes_here", &Layer::bytes_here, py::arg("table"),
           "Bytes of this rank's parts of a table, in memory or in files.")
      .def("flush", &Layer::flush, no_gil, "Brings DTensors of tables in files up to date.")
      .def("cache_counts", &cache_counts, py::arg("table"), "See shardwise.CacheCounts; None for a table in memory.")
      .def(
          "gathered_rows",
          [](const Layer& self, size_t table, int64_t begin, int64_t end, std::optional<int64_t> root) {
            return self.gathered_rows(table, {begin, end}, root);  // None on ranks that get none
          },
          no_gil, py::arg("table"), py::arg("begin"), py::arg("end"), py::arg("root"),
          "Rows of a whole table on the rank `root` of the mesh, or on all. Collective: one exchange.")
      .def("traffic", &traffic, "Per table (ids, rows, bytes) of the last lookup: see shardwise.TableTraffic.")
      .def("buffer_bytes", &Layer::buffer_bytes, "Memory of buffers for rows in messages, kept for the next step.")
      .def(
          "raise_together",
          [](const Layer& self, const std::optional<PyError>& error) {
            agree(*self.lanes().mesh->group(), "DistributedEmbedding", Facts(), to_error(error));
          },
          no_gil, py::arg("error"), "Raises, on all ranks, the error of the first rank that has one. Collective.")
      .def("start", &start, py::arg("inputs"), py::arg("tables"), py::arg("error") = py::none(),
           "Sends ids to their rows' owners: (ids, offsets, lengths, weights) per feature. Collective.");
  py::class_<Layer::Lookup, std::shared_ptr<Layer::Lookup>>(layer, "Lookup",
                                                            "A started lookup, whose ids are being sent.")
      .def("fetch", &Layer::Lookup::fetch, no_gil, "Requests the rows. Collective.")
      .def("wait", &Layer::Lookup::wait, no_gil, "The vectors by feature. Collective without fetch().");
}

}  // namespace shardwise
