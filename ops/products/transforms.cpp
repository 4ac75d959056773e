// ops/products/transforms.cpp: Fourier transforms, linear: transformed dims are whole, all other dims may be sharded.
#include "ops/families.h"
#include "ops/support/axes.h"

#include <c10/core/WrapDimMinimal.h>

namespace shardwise {
namespace {

/// Along a transformed dim the result may be longer or shorter than the input.
void describe(const OpCall& call, Signature& signature) {
  const Axes input = add_axes(signature, call.operands[0].sizes);
  Axes output = input;
  for (int64_t dim : call.arg("dim").toIntVector()) {
    const int64_t at = c10::maybe_wrap_dim(dim, static_cast<int64_t>(input.size()), /*wrap_scalar=*/false);
    signature.factors[input[at].factor].is_whole = true;
    output[at].factor = signature.add_factor(0);
    signature.factors.back().is_whole = true;
  }
  signature.inputs = {input};
  signature.outputs = {output};
}

}  // namespace

void register_transforms(RuleTable& table) {
  table.add({"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"},
            Rule("Fourier transform", describe).linear().sampled());
}

}  // namespace shardwise
