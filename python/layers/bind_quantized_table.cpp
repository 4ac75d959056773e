#include "ops/embedding/quantized_table.h"
#include "python/casters.h"

namespace shardwise {
namespace {

std::shared_ptr<QuantizedTable> zeros_of(const Dims& size, at::ScalarType dtype, const MaybeMesh& mesh,
                                         MaybePlacements placements) {
  PlacedOn placed = placed_or_replicated(mesh, std::move(placements), static_cast<int64_t>(size.size()));
  return QuantizedTable::zeros(size, placed.mesh, std::move(placed.placements), dtype);
}

}  // namespace

void bind_quantized_table(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<QuantizedTable, std::shared_ptr<QuantizedTable>>(
      module, "QuantizedTable",
      R"(A table of 8-bit rows, each with a float32 scale and offset, for lookups without training: see quantize_rows().

>>> table = sw.rand(100, 16, device_mesh=mesh, placements=[sw.Shard(0)])
>>> small = sw.quantize_rows(table)
>>> ids = sw.distribute_tensor(torch.tensor([3, 99]), mesh, [sw.Replicate()])
>>> small.lookup(ids).shape, small.placements, small.shape
(torch.Size([2, 16]), (Shard(0),), (100, 16)))")
      .def("lookup", wrap_pybind_function_no_gil(&QuantizedTable::lookup), py::arg("ids"),
           "The rows of `ids`, a DTensor of int64 or int32: F.embedding(ids, table.dequantize()) in dtype and layout, "
           "over the same exchange (lookup_exchange chooses it), but rows travel as 8 bits, a scale and an offset.\n\n"
           "Raises as F.embedding does.")
      .def("lookup_bags", wrap_pybind_function_no_gil(&QuantizedTable::lookup_bags), py::arg("ids"),
           py::arg("offsets") = py::none(), py::arg("mode") = "mean", py::kw_only(),
           py::arg("per_sample_weights") = py::none(), py::arg("include_last_offset") = false,
           py::arg("padding_idx") = py::none(),
           "Sums, means or maxima of bags of rows, as F.embedding_bag(ids, table.dequantize(), offsets, mode=mode, "
           "...): ids [bags, n], or flat ones with `offsets`. Rows are pooled as they are unpacked.\n\n"
           "Raises as F.embedding_bag does.")
      .def("dequantize", wrap_pybind_function_no_gil(&QuantizedTable::dequantized),
           "The table that lookups read, as a DTensor of the dtype and layout of the one that was quantised.")
      .def_static("zeros", wrap_pybind_function_no_gil(&zeros_of), py::arg("size"), py::kw_only(),
                  py::arg("dtype") = at::kFloat, py::arg("device_mesh") = py::none(),
                  py::arg("placements") = py::none(),
                  "A table of `size` (rows, columns) whose numbers are all 0, for load_state_dict(). `dtype`: of what "
                  "lookups give; mesh and placements as of sw.zeros. Nothing is sent.\n\n"
                  "Raises TypeError for a dtype that is not floating, ValueError for other than two sizes and for "
                  "Partial placements.")
      .def("state_dict", wrap_pybind_function_no_gil(&QuantizedTable::state),
           "The values that a checkpoint keeps, copied into DTensors: \"codes\", uint8 [rows, columns], laid out as "
           "the table, and \"scales\" and \"offsets\", float32 [rows]: an element is scale * code + offset. They are "
           "saved and resharded as any DTensors, and a table is an object that torch.distributed.checkpoint saves and "
           "loads: dcp.save({\"table\": table}), then dcp.load({\"table\": other}) with a QuantizedTable.zeros() of "
           "that shape on any ranks.")
      .def("load_state_dict", wrap_pybind_function_no_gil(&QuantizedTable::load_state), py::arg("state_dict"),
           "Loads the numbers of a state_dict() from any layout; nothing is rounded again.\n"
           "\n"
           "Raises ValueError or TypeError, on all ranks alike and with the table as before, for other names, shapes "
           "or dtypes, and where a row's scale or offset is not finite.")
      .def_property_readonly(
          "shape", [](const QuantizedTable& self) { return self.spec()->sizes(); }, "Rows and columns.")
      .def_property_readonly(
          "placements", [](const QuantizedTable& self) { return self.spec()->placements().vec(); },
          "The layout of the quantised table.")
      .def_property_readonly(
          "device_mesh", [](const QuantizedTable& self) { return self.spec()->mesh(); }, "The mesh that it lies on.")
      .def_property_readonly("nbytes", &QuantizedTable::n_bytes, "Bytes on this rank.")
      .def("__repr__", [](const QuantizedTable& self) {
        return "QuantizedTable(int8 with a scale and an offset per row, of " + to_string(*self.spec()) + ")";
      });
  define(module, "quantize_rows", &QuantizedTable::of, py::arg("table"), py::arg("dtype") = at::kChar,
         "Rounds a table (a 2-D floating DTensor of any layout that is not Partial) row by row to 8 bits: scale is "
         "the range of the row / 255, offset its least number, and an element changes by at most scale / 2. Rows "
         "whose columns lie on several ranks are rounded as whole ones, so that every layout gives the same "
         "numbers; this costs a message of 8 bytes a row. `dtype`: torch.int8.\n\n"
         "Raises TypeError or ValueError, on all ranks alike, for another table or dtype, and where a row has a "
         "number that is not finite.\n\n"
         ">>> table = sw.rand(100, 16, device_mesh=mesh, placements=[sw.Shard(0)])\n"
         ">>> small = sw.quantize_rows(table)\n"
         ">>> (small.dequantize() - table).abs().max().item() < 1 / 255\n"
         "True");
}

}  // namespace shardwise
