#include "ops/support/overloads.h"

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

}  // namespace shardwise
