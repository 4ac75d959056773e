#include "python/bindings.h"
#include "python/casters.h"
#include "wrappers/fsdp/gather_schedule.h"

#include <pybind11/functional.h>
#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

using Schedule = GatherSchedule;
using Groups = std::vector<ParameterGroupPtr>;

ParameterGroupPtr create(const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters,
                         const MeshPtr& mesh, const MeshPtr& root, std::optional<c10::ScalarType> param_dtype,
                         std::optional<c10::ScalarType> reduce_dtype, const Placements& along) {
  return ParameterGroup::create(names, parameters, {mesh, root}, {param_dtype, reduce_dtype}, along);
}

std::vector<std::weak_ptr<ParameterGroup>> weakly(const Groups& groups) { return {groups.begin(), groups.end()}; }

using SentPieces = std::pair<std::vector<at::Tensor>, std::string>;
using Whole = std::optional<std::pair<at::Tensor, std::vector<at::Tensor>>>;

void set_class_calls(ParameterGroup& group, std::function<SentPieces(size_t, std::vector<int64_t>)> pieces,
                     std::function<Whole(size_t, const std::vector<at::Tensor>&, std::optional<at::Tensor>)> whole) {
  group.set_class_calls({
      [pieces = std::move(pieces)](size_t parameter, std::vector<int64_t> sizes) {
        auto [tensors, fault] = pieces(parameter, std::move(sizes));
        return ClassPieces{std::move(tensors), std::move(fault)};
      },
      [whole = std::move(whole)](size_t parameter, const std::vector<at::Tensor>& gathered, const at::Tensor& kept) {
        auto made = whole(parameter, gathered, kept.defined() ? std::optional(kept) : std::nullopt);
        return made ? std::optional(ClassWhole{std::move(made->first), std::move(made->second)}) : std::nullopt;
      },
  });
}

void bind_groups(py::module_& module) {
  py::class_<ParameterGroup, ParameterGroupPtr>(
      module, "ParameterGroup", "Parameters that are gathered in one exchange, with gradients that are reduced in one.")
      .def(py::init(&create), py::arg("names"), py::arg("parameters"), py::arg("mesh"), py::arg("root"),
           py::arg("param_dtype"), py::arg("reduce_dtype"), py::arg("along"))
      .def("with_sharded", torch::wrap_pybind_function(&ParameterGroup::with), py::arg("sharded"))
      .def_property_readonly("sharded", &ParameterGroup::sharded)
      .def_property("leaves", &ParameterGroup::leaves, &ParameterGroup::set_leaves)
      .def("set_class_calls", &set_class_calls, py::arg("pieces"), py::arg("whole"))
      .def_property_readonly("is_in_place", &ParameterGroup::is_in_place)
      .def_property_readonly("is_stale", &ParameterGroup::is_stale)
      .def("on_exchange", &ParameterGroup::on_exchange, py::arg("exchange"))
      .def("start_gather", torch::wrap_pybind_function_no_gil(&ParameterGroup::start_gather))
      .def("gather", torch::wrap_pybind_function_no_gil(&ParameterGroup::gather))
      .def("release", torch::wrap_pybind_function_no_gil(&ParameterGroup::release))
      .def("set_divide_factor", torch::wrap_pybind_function(&ParameterGroup::set_divide_factor), py::arg("factor"))
      .def("set_all_reduces", torch::wrap_pybind_function(&ParameterGroup::set_all_reduces), py::arg("all_reduces"));
}

void bind_schedules(py::module_& module) {
  using Settings = GroupSchedule;
  py::class_<Settings, std::shared_ptr<Settings>>(module, "GroupSchedule", "The settings of one group.")
      .def(py::init())
      .def_readwrite("reshards_after_forward", &Settings::reshards_after_forward)
      .def_readwrite("n_keeping", &Settings::n_keeping)
      .def_readwrite("reshards_after_backward", &Settings::reshards_after_backward)
      .def_readwrite("reduces", &Settings::reduces)
      .def_readwrite("fills_unused", &Settings::fills_unused)
      .def_readwrite("gathers_in_backward", &Settings::gathers_in_backward)
      .def(
          "set_ahead_in_forward", [](Settings& self, const Groups& groups) { self.ahead_in_forward = weakly(groups); },
          py::arg("groups"))
      .def(
          "set_ahead_in_backward",
          [](Settings& self, const Groups& groups) { self.ahead_in_backward = weakly(groups); }, py::arg("groups"));

  py::class_<Schedule, std::shared_ptr<Schedule>>(
      module, "GatherSchedule", "When the parameter groups of a model are gathered, released and reduced.")
      .def(py::init())
      .def("add", torch::wrap_pybind_function(&Schedule::add), py::arg("group"), py::arg("settings"))
      .def("take", torch::wrap_pybind_function(&Schedule::take), py::arg("other"))
      .def("replace", torch::wrap_pybind_function(&Schedule::replace), py::arg("old"), py::arg("fresh"))
      .def("enter_forward", torch::wrap_pybind_function_no_gil(&Schedule::enter_forward), py::arg("group"))
      .def("leave_forward", torch::wrap_pybind_function_no_gil(&Schedule::leave_forward), py::arg("group"),
           py::arg("releases") = true)
      .def("reshard_after_forward", torch::wrap_pybind_function_no_gil(&Schedule::reshard_after_forward),
           py::arg("group"))
      .def("before_backward", torch::wrap_pybind_function_no_gil(&Schedule::before_backward), py::arg("group"))
      .def("after_backward", torch::wrap_pybind_function_no_gil(&Schedule::after_backward), py::arg("group"))
      .def_property_readonly("n_ended", &Schedule::n_ended)
      .def("set_last_backward", torch::wrap_pybind_function(&Schedule::set_last_backward), py::arg("is_last"))
      .def("reset", torch::wrap_pybind_function_no_gil(&Schedule::reset));
}

}  // namespace

void bind_parameter_group(py::module_& module) {
  bind_groups(module);
  bind_schedules(module);
}

}  // namespace shardwise
