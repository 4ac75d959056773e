#include "ops/support/planes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shardwise {

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
