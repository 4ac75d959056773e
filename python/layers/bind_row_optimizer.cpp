#include "ops/embedding/row_optimizer.h"
#include "python/bindings.h"

#include <string>

namespace shardwise {
namespace {

RowOptimizer::Method method_named(const std::string& name) {
  using Method = RowOptimizer::Method;
  if (name == "sgd") return Method::kSgd;
  if (name == "adagrad") return Method::kAdagrad;
  if (name == "row_wise_adagrad") return Method::kRowWiseAdagrad;
  if (name == "adam") return Method::kAdam;
  if (name == "row_wise_adam") return Method::kRowWiseAdam;
  if (name == "lamb") return Method::kLamb;
  if (name == "row_wise_lamb") return Method::kRowWiseLamb;
  TORCH_INTERNAL_ASSERT(false, "there is no method ", name);
}

/// Calls a Python function before each step, from any thread that runs a backward.
void set_before_step(RowOptimizer& optimizer, py::function function) {
  const std::shared_ptr<py::function> shared(new py::function(std::move(function)), [](py::function* held) {
    const py::gil_scoped_acquire gil;
    delete held;
  });
  optimizer.set_before_step([shared] {
    const py::gil_scoped_acquire gil;
    (*shared)();
  });
}

}  // namespace

void bind_row_optimizer(py::module_& module) {
  using Options = RowOptimizer::Options;
  py::class_<Options>(module, "RowOptions")
      .def(py::init([](const std::string& kind, double lr, double eps, double beta1, double beta2,
                       double initial_accumulator_value, double weight_decay, bool decoupled_weight_decay,
                       bool stochastic_rounding, uint64_t seed) {
             return Options{method_named(kind),
                            lr,
                            eps,
                            beta1,
                            beta2,
                            initial_accumulator_value,
                            weight_decay,
                            decoupled_weight_decay,
                            stochastic_rounding,
                            seed};
           }),
           py::arg("kind"), py::arg("lr"), py::arg("eps"), py::arg("beta1"), py::arg("beta2"),
           py::arg("initial_accumulator_value"), py::arg("weight_decay"), py::arg("decoupled_weight_decay"),
           py::arg("stochastic_rounding"), py::arg("seed"));
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<RowOptimizer, std::shared_ptr<RowOptimizer>>(
      module, "RowOptimizer",
      "The optimizer that the backward of lookups in one table applies to its rows. See shardwise.optim.")
      .def(py::init<const at::Tensor&, const Options&>(), no_gil, py::arg("table"), py::arg("options"))
      .def("set_options", &RowOptimizer::set_options, py::arg("options"), "Sets the options of the following steps.")
      .def("write_back", &RowOptimizer::write_back, no_gil, "Brings the state tensors of a table in files up to date.")
      .def("set_before_step", &set_before_step, py::arg("function"), "Called before each step.")
      .def_property("n_steps", &RowOptimizer::n_steps, &RowOptimizer::set_n_steps, "Backwards so far.")
      .def_property_readonly("state", &RowOptimizer::state,
                             "The state tensors, laid out as the table: none, one or two.");
  module.def("fuse_optimizer", &fuse_optimizer, py::arg("table"), py::arg("optimizer"),
             "While `optimizer` lives, the backward of lookups in `table` updates its rows.");
  module.def("release_optimizer", &release_optimizer, py::arg("table"), py::arg("optimizer"),
             "From now on lookups in `table` give gradients again.");
}

}  // namespace shardwise
