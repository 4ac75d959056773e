#include "ops/support/common_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shardwise {
namespace {

constexpr const char* kOverloads[] = {"",
                                      "Tensor",
                                      "Scalar",
                                      "Tensor_Scalar",
                                      "Scalar_Tensor",
                                      "Tensor_Tensor",
                                      "Tensor_mode",
                                      "Scalar_mode",
                                      "self",
                                      "decimals",
                                      "Scalar_Self",
                                      "Scalar_Other",
                                      "self_scalar",
                                      "other_scalar",
                                      "x_scalar",
                                      "n_scalar",
                                      "List",
                                      "ScalarList",
                                      "ScalarAndTensor",
                                      "tensor_lr"};

/// True if torch composes the operator, above autograd, of other operators, which have their own rules.
bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
}

}  // namespace

void add_overloads(RuleTable& table, std::initializer_list<std::string_view> names, const Rule& rule) {
  for (std::string_view name : names)
    for (const char* suffix : {"", "_"})
      for (const char* overload : kOverloads) {
        const std::string base = "aten::" + std::string(name) + suffix;
        const auto op = c10::Dispatcher::singleton().findSchema({base, overload});
        if (op && !decomposes(*op)) table.add(*overload ? base + "." + overload : base, rule);
      }
}

void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes) {
  const Axes whole = signature.add_factors(sizes.slice(sizes.size() - n), /*is_whole=*/true);
  axes.append(whole.begin(), whole.end());
}

void keep_whole_if_empty(const OpCall& call, Signature& signature) {
  const bool is_empty = std::ranges::any_of(
      call.operands, [](const Operand& operand) { return c10::multiply_integers(operand.sizes) == 0; });
  for (Factor& factor : signature.factors) factor.is_whole |= is_empty;
}

Rule planes(const char* name, size_t n) {
  return {name, [plane = "…" + std::string(n, '_')](const OpCall& call, Signature& signature) {
            const std::vector<std::string> inputs(call.operands.size(), plane), outputs(call.outputs.size(), plane);
            const Rule rule(fmt::format("{}->{}", fmt::join(inputs, ","), fmt::join(outputs, ",")).c_str());
            signature = rule.signature(call);
            keep_whole_if_empty(call, signature);
          }};
}

}  // namespace shardwise
