#include "python/casters.h"
#include "wrappers/fsdp/taken_parameters.h"
#include "wrappers/fsdp/unit_call.h"

#include <pybind11/functional.h>

namespace shardwise {
namespace {

using Unit = GroupSchedule;
using UnitPtr = std::shared_ptr<Unit>;
using Units = std::vector<UnitPtr>;

ParameterGroupPtr create(const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters,
                         const MeshPtr& mesh, std::optional<c10::ScalarType> param_dtype,
                         std::optional<c10::ScalarType> reduce_dtype, const Placements& along) {
  return ParameterGroup::create(names, parameters, mesh, {param_dtype, reduce_dtype}, along);
}

std::vector<std::weak_ptr<Unit>> weakly(const Units& units) { return {units.begin(), units.end()}; }

/// Calls `function` with pointers to `tensors`. Returns the tensors that it replaced, by place.
template <class Function>
std::vector<std::pair<size_t, at::Tensor>> replaced_by(const Function& function, std::vector<at::Tensor> tensors) {
  const std::vector<at::Tensor> given = tensors;
  std::vector<at::Tensor*> places;
  for (at::Tensor& tensor : tensors) places.push_back(&tensor);
  function(places);
  std::vector<std::pair<size_t, at::Tensor>> result;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].is_same(given[i])) result.emplace_back(i, tensors[i]);
  return result;
}

auto enter(const UnitPtr& unit, const std::string& name, int64_t module, std::vector<at::Tensor> inputs) {
  return replaced_by([&](const auto& places) { enter_call(unit, name, module, places); }, std::move(inputs));
}

auto leave(const UnitPtr& unit, int64_t module, std::vector<at::Tensor> outputs) {
  return replaced_by([&](const auto& places) { leave_call(unit, module, places); }, std::move(outputs));
}

void set_reshard_after_forward(Unit& unit, const ReshardAfterForward& given, const MeshPtr& mesh) {
  unit.set_reshard_after_forward(given, *mesh);
}

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
      .def(py::init(&create), py::arg("names"), py::arg("parameters"), py::arg("mesh"), py::arg("param_dtype"),
           py::arg("reduce_dtype"), py::arg("along"))
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
      .def("on_reduced", &ParameterGroup::on_reduced, py::arg("reduced"))
      .def("set_all_reduces", torch::wrap_pybind_function(&ParameterGroup::set_all_reduces), py::arg("all_reduces"));
}

void bind_schedules(py::module_& module) {
  py::class_<Unit, UnitPtr>(module, "GroupSchedule",
                            "A group in a schedule: its settings, and the calls of its modules.")
      .def(py::init())
      .def_readwrite("n_modules", &Unit::n_modules)
      .def_readwrite("reshards_after_backward", &Unit::reshards_after_backward)
      .def_readwrite("reduces", &Unit::reduces)
      .def_readwrite("fills_unused", &Unit::fills_unused)
      .def_readwrite("gathers_in_backward", &Unit::gathers_in_backward)
      .def_property_readonly("schedule", &Unit::schedule)
      .def("set_reshard_after_forward", torch::wrap_pybind_function(&set_reshard_after_forward),
           py::arg("reshard_after_forward"), py::arg("mesh"))
      .def(
          "set_ahead_in_forward", [](Unit& self, const Units& units) { self.ahead_in_forward = weakly(units); },
          py::arg("units"))
      .def(
          "set_ahead_in_backward", [](Unit& self, const Units& units) { self.ahead_in_backward = weakly(units); },
          py::arg("units"))
      .def("enter", torch::wrap_pybind_function_no_gil(&enter), py::arg("name"), py::arg("module"), py::arg("inputs"))
      .def("leave", torch::wrap_pybind_function_no_gil(&leave), py::arg("module"), py::arg("outputs"));

  using Schedule = GatherSchedule;
  py::class_<Schedule, std::shared_ptr<Schedule>>(
      module, "GatherSchedule", "When the parameter groups of a model are gathered, released and reduced.")
      .def(py::init())
      .def("add", torch::wrap_pybind_function(&Schedule::add), py::arg("unit"), py::arg("group"))
      .def("take", torch::wrap_pybind_function(&Schedule::take), py::arg("other"))
      .def("replace", torch::wrap_pybind_function(&Schedule::replace), py::arg("unit"), py::arg("group"))
      .def("set_last_backward", torch::wrap_pybind_function(&Schedule::set_last_backward), py::arg("is_last"))
      .def("reset", torch::wrap_pybind_function_no_gil(&Schedule::reset));
}

}  // namespace

void bind_parameter_group(py::module_& module) {
  module.def("default_split", &default_split, py::arg("parameter"), py::arg("mesh"));
  module.def("note_taken", &note_taken, py::arg("parameter"), py::arg("owner"));
  define_with_gil(module, "check_not_taken", &check_not_taken, py::arg("name"), py::arg("parameter"));
  bind_groups(module);
  bind_schedules(module);
}

}  // namespace shardwise
