#include "python/bindings.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/rules/propagate.h"
#include "text/check.h"

#include <algorithm>
#include <cctype>
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

}  // namespace

void bind_rule(py::module_& module) {
  module.def("register_rule", &py_register_rule, py::arg("op"), py::arg("rule"), py::kw_only(),
             py::arg("linear") = py::none(), py::arg("whole") = "", kRegisterRule);
}

}  // namespace shardwise
