#include "python/casters.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/rules/acceptable_sharding.h"
#include "runtime/rules/propagate.h"
#include "text/check.h"

#include <fmt/format.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

namespace shardwise {
namespace {

constexpr const char* kRegisterRule =
    R"(Registers how operator `op` ("mylib::op", or "mylib::op.overload") maps layouts of operands to layouts of results. Call it
once, with the same arguments on all ranks, before the operator is used.

- `rule`: letters such as "ij,jk->ik". A letter is an index range that tensors share, and a mesh dim may shard any letter. An
  output without a letter of the operands is a Partial sum. `_` is a dim that is never sharded, and a leading `…` stands for
  any number of batch dims, which broadcast: "…ij,…jk->…ik". Or a function of the operands' shapes that returns such letters, or
  None to gather the operands: `lambda shapes: "ij,jk->ik" if len(shapes[0]) == 2 else None`. It is called once per set of layouts
  and values of the other arguments, floats included. Or "pointwise", for an elementwise operator of tensors of any shapes, which
  broadcast as in torch.
- `linear`: which operands may be Partial without a reduction: "all" operands together, "each" one while the others are not
  Partial, or only the "first".
- `whole`: letters that are never sharded.

A call with a new value of an argument, such as a learning rate, is decided anew. The operator itself runs on each rank's pieces: if
an argument is a global size along a letter, name that letter in `whole`. The function form needs a meta (fake) kernel of the
operator; without one the operands are gathered.

Raises ValueError for an operator that torch does not know or that has a rule.

>>> library = torch.library.Library(f"example{rank}", "DEF")
>>> library.define("double_rows(Tensor x) -> Tensor")
'double_rows'
>>> library.impl("double_rows", lambda x: x * 2, "CompositeExplicitAutograd")
>>> sw.register_rule(f"example{rank}::double_rows", "ij->ij")
>>> double_rows = getattr(torch.ops, f"example{rank}").double_rows
>>> x = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
>>> with torch.no_grad():
...     double_rows(x).placements
(Shard(0),))";

Linearity linearity_named(const std::string& name) {
  if (name == "all") return Linearity::kAll;
  if (name == "each") return Linearity::kEach;
  if (name == "first") return Linearity::kFirst;
  SW_CHECK_VALUE(false, "[register_rule] linear=\"{}\" is none of \"all\", \"each\", \"first\".", name);
}

/// The notation that a Python function returns for a call's shapes; nullopt: gather.
std::optional<std::string> ask(PyObject* function, const OpCall& call) {
  py::gil_scoped_acquire gil;
  py::list shapes;
  for (const Operand& operand : call.operands) shapes.append(py::tuple(py::cast(operand.sizes.vec())));
  const py::object answer = py::handle(function)(shapes);
  SW_CHECK_VALUE(answer.is_none() || py::isinstance<py::str>(answer),
                 "[register_rule] the rule of {} returned {}. Return notation, \"ij,jk->ik\", or None.", call.op.name,
                 py::repr(answer).cast<std::string>());
  return answer.cast<std::optional<std::string>>();
}

/// Marks the factors of `letters` as never sharded.
void keep_whole(Signature& signature, const std::string& notation, const std::string& letters) {
  for (char letter : letters) {
    const auto factor = std::ranges::find(signature.factors, letter, &Factor::letter);
    SW_CHECK_VALUE(factor != signature.factors.end(),
                   "[register_rule] whole='{}' is no letter of \"{}\". Name letters that it has.", letter, notation);
    factor->is_whole = true;
  }
}

/// An unknown operator may return results whose shape depends on a number.
Rule rule_of_notation(const std::string& notation, Linearity linearity, const std::string& whole) {
  const Rule plain(notation.c_str());
  const auto describe = [=](const OpCall& call, Signature& signature) {
    signature = plain.signature(call);
    keep_whole(signature, notation, whole);
  };
  const std::string text = whole.empty() ? plain.text() : fmt::format("{} whole({})", plain.text(), whole);
  return Rule(text, describe).linear(linearity).sampled().by_numbers();
}

/// The rule that a text says: notation, or "pointwise".
Rule rule_of_text(const std::string& text, Linearity linearity, const std::string& whole) {
  if (text != "pointwise") return rule_of_notation(text, linearity, whole);
  SW_CHECK_VALUE(whole.empty(),
                 "[register_rule] whole='{}' names letters, and the rule \"pointwise\" has none. Write the rule in "
                 "letters: \"ij,ij->ij\".",
                 whole);
  return pointwise().linear(linearity);
}

/// Checks that the notation has as many outputs as the schema, unless the schema returns a list.
void check_outputs(const std::string& op, const std::string& notation) {
  const auto handle = find_operator(op);
  const size_t arrow = notation.find("->");
  if (!handle || arrow == std::string::npos) return;  // reported later, with a better text
  const auto& returns = handle->schema().returns();
  const auto n_outputs =
      1 + std::ranges::count(notation.begin() + static_cast<std::ptrdiff_t>(arrow), notation.end(), ',');
  const bool has_lists = std::ranges::any_of(
      returns, [](const c10::Argument& result) { return result.type()->kind() == c10::TypeKind::ListType; });
  SW_CHECK_VALUE(has_lists || static_cast<int64_t>(returns.size()) == n_outputs,
                 "[register_rule] {} has {} outputs, but \"{}\" has terms for {}. Write a term for each.", op,
                 returns.size(), notation, n_outputs);
}

void py_register_rule(const std::string& op, const std::variant<std::string, py::function>& rule,
                      const std::optional<std::string>& linear, const std::string& whole) {
  const Linearity linearity = linear ? linearity_named(*linear) : Linearity::kNone;
  if (const auto* notation = std::get_if<std::string>(&rule)) check_outputs(op, *notation);
  if (const auto* notation = std::get_if<std::string>(&rule))
    return add_user_rule(op, rule_of_text(*notation, linearity, whole));
  // Lives as long as the process, because rules are never unregistered.
  PyObject* function = py::object(std::get<py::function>(rule)).release().ptr();
  const Rule asking = Rule::placed("given by a function", [=](const OpCall& call) -> std::optional<Propagation> {
    const auto notation = ask(function, call);
    if (!notation) return std::nullopt;
    return propagate(call, rule_of_text(*notation, linearity, whole).signature(call));
  });
  add_user_rule(op, asking.by_numbers());
}

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

void bind_rule(py::module_& module) {
  module.def("register_rule", &py_register_rule, py::arg("op"), py::arg("rule"), py::kw_only(),
             py::arg("linear") = py::none(), py::arg("whole") = "", kRegisterRule);
  define_with_gil(module, "register_sharding", &py_register_sharding, kRegisterSharding, py::arg("op"), py::arg("ask"));
}

}  // namespace shardwise
