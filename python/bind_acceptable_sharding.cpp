#include "python/casters.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/rules/acceptable_sharding.h"

#include <fmt/format.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace shardwise {
namespace {

constexpr const char* kRegisterSharding =
    R"(From now on `op` ("mylib::op.overload") runs under the shardings that `ask` gives for a call: a list of (placements of
the outputs, of the inputs), None for what is no tensor. `ask` is given the call's arguments in the order of the schema,
each as (name, value, whether it is a keyword, whether it is the default); a tensor is (mesh, placements, shape, strides,
dtype). Raises ValueError for an operator that torch does not know or composes of others.)";

py::object described_operand(const Operand& operand) {
  if (!operand.spec) return py::none();  // a plain number
  const Spec& spec = *operand.spec;
  return py::make_tuple(spec.mesh(), spec.placements().vec(), spec.sizes(), spec.strides(), spec.dtype());
}

/// Argument `i` of the call, with descriptions in place of tensors.
py::object told_argument(const OpCall& call, size_t i) {
  const c10::IValue& value = call.args[i];
  if (value.isTensor()) {
    const int operand = call.operand_at(i);
    return operand < 0 ? py::none() : described_operand(call.operands[operand]);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    py::list result;
    for (size_t j = 0; j < value.toListRef().size(); ++j) result.append(py::none());
    for (const Operand& operand : call.operands)
      if (operand.arg == i) result[operand.index] = described_operand(operand);
    return result;
  }
  const c10::Argument& argument = call.op.handle.schema().arguments()[i];
  const auto type = argument.real_type();
  const auto optional = type->cast<c10::OptionalType>();
  const bool is_dtype = (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::ScalarTypeType;
  return is_dtype && value.isInt() ? py::cast(value.toScalarType()) : torch::jit::toPyObject(value);
}

bool has_default(const OpCall& call, size_t i) {
  const auto& standard = call.op.handle.schema().arguments()[i].default_value();
  const c10::IValue& value = call.args[i];
  return standard && !value.isTensor() && !value.isTensorList() && !value.isOptionalTensorList() && value == *standard;
}

template <class Maybes>
void read_placements(py::handle given, bool skips_none, Maybes& placements) {
  for (const py::handle each : given) {
    if (!each.is_none())
      placements.push_back(to_placement(each));
    else if (!skips_none)
      placements.push_back(std::nullopt);
  }
}

std::vector<AcceptableSharding> shardings_of(PyObject* function, const OpCall& call) {
  const py::gil_scoped_acquire gil;
  py::list arguments;
  const auto& schema = call.op.handle.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i)
    arguments.append(
        py::make_tuple(schema[i].name(), told_argument(call, i), schema[i].kwarg_only(), has_default(call, i)));
  std::vector<AcceptableSharding> result;
  for (const py::handle pair : py::handle(function)(arguments)) {
    const auto [outputs, inputs] = pair.cast<std::pair<py::object, py::object>>();
    AcceptableSharding& sharding = result.emplace_back();
    read_placements(outputs, /*skips_none=*/false, sharding.outputs);
    read_placements(inputs, /*skips_none=*/true, sharding.inputs);
  }
  return result;
}

void py_register_sharding(const std::string& op, const py::function& function) {
  // Lives as long as the process, because kernels are never unregistered.
  PyObject* kept = py::object(function).release().ptr();
  const Rule rule = Rule::placed("registered shardings", [kept](const OpCall& call) -> std::optional<Propagation> {
    return propagate_acceptable(call, shardings_of(kept, call));
  });
  replace_answer(op, rule.by_numbers());
}

}  // namespace

void bind_acceptable_sharding(py::module_& module) {
  define_with_gil(module, "register_sharding", &py_register_sharding, kRegisterSharding, py::arg("op"), py::arg("ask"));
}

}  // namespace shardwise
