#include "ops/embedding/row_optimizer.h"
#include "python/bindings.h"

#include <string>

namespace shardwise {
namespace {

RowOptimizer::Kind kind_named(const std::string& name) {
  using Kind = RowOptimizer::Kind;
  if (name == "sgd") return Kind::kSgd;
  if (name == "adagrad") return Kind::kAdagrad;
  if (name == "row_wise_adagrad") return Kind::kRowWiseAdagrad;
  if (name == "adam") return Kind::kAdam;
  TORCH_CHECK_VALUE(false, "[RowOptimizer] there is no kind \"", name,
                    "\". Use \"sgd\", \"adagrad\", \"row_wise_adagrad\" or \"adam\".");
}

std::shared_ptr<RowOptimizer> fuse(const at::Tensor& table, const std::string& kind, double lr, double eps, double beta1,
                                   double beta2, double initial_accumulator_value) {
  auto optimizer = std::make_shared<RowOptimizer>(
      table, RowOptimizer::Options{kind_named(kind), lr, eps, beta1, beta2, initial_accumulator_value});
  fuse_optimizer(table, optimizer);
  return optimizer;
}

}  // namespace

void bind_row_optimizer(py::module_& module) {
  py::class_<RowOptimizer, std::shared_ptr<RowOptimizer>>(
      module, "RowOptimizer", "What the backward of lookups in one table applies to its rows; made by fuse_optimizer().")
      .def("set_lr", &RowOptimizer::set_lr, py::arg("lr"), "The learning rate from now on.")
      .def_property("n_steps", &RowOptimizer::n_steps, &RowOptimizer::set_n_steps, "Backwards so far.")
      .def_property_readonly("state", &RowOptimizer::state, "The state tensors, laid out as the table: none, one or two.");
  module.def("fuse_optimizer", &fuse, py::arg("table"), py::arg("kind"), py::arg("lr"), py::arg("eps"), py::arg("beta1"),
             py::arg("beta2"), py::arg("initial_accumulator_value"),
             "Makes the backward of lookups in `table` update its rows. See shardwise.optim.",
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "release_optimizer", [](const at::Tensor& table) { fuse_optimizer(table, nullptr); }, py::arg("table"),
      "From now on lookups in `table` give gradients again.");
}

}  // namespace shardwise
