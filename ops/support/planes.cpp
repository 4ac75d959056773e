#include "ops/support/planes.h"

#include "ops/support/axes.h"

#include <algorithm>

namespace shardwise {

void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes) {
  const Axes whole = add_axes(signature, sizes.slice(sizes.size() - n), /*is_whole=*/true);
  axes.append(whole.begin(), whole.end());
}

void keep_whole_if_empty(const OpCall& call, Signature& signature) {
  const bool is_empty = std::ranges::any_of(
      call.operands, [](const Operand& operand) { return c10::multiply_integers(operand.sizes) == 0; });
  for (Factor& factor : signature.factors) factor.is_whole |= is_empty;
}

Rule planes(const char* name, size_t n) {
  return {name, [n](const OpCall& call, Signature& signature) {
            Axes shared;
            const c10::IntArrayRef sizes = call.operands[0].sizes;
            for (size_t dim = 0; dim + n < sizes.size(); ++dim) shared.push_back({signature.add_factor(sizes[dim])});
            for (const Operand& operand : call.operands) {
              const size_t n_shared = std::min(shared.size(), operand.sizes.size());
              Axes axes(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(n_shared));
              add_whole_axes(operand.sizes, operand.sizes.size() - n_shared, signature, axes);
              signature.inputs.push_back(std::move(axes));
            }
            Axes result = shared;
            result.resize(sizes.size());
            signature.outputs.assign(call.outputs.size(), result);
            keep_whole_if_empty(call, signature);
          }};
}

}  // namespace shardwise
