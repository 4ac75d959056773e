// ops/products/linalg.cpp: operators on matrices, whose batch dims may be sharded, and Fourier transforms, which are linear: transformed dims are whole.
#include "ops/families.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {
namespace {

/// An output without a batch dim, unless it is empty because it was not requested, is not a sum over the batch, so that dim is gathered.
void gather_lacking(const OpCall& call, Signature& signature) {
  for (int factor = 0; factor < static_cast<int>(signature.factors.size()); ++factor)
    for (size_t i = 0; i < call.outputs.size(); ++i)
      if (c10::multiply_integers(call.outputs[i].sizes) > 0 &&
          std::ranges::find(signature.outputs[i], factor, &Axis::factor) == signature.outputs[i].end())
        signature.factors[factor].is_whole = true;
}

/// Batches of matrices (__), vectors (_) and numbers.
Rule batches_of(const char* notation) {
  return {notation, [rule = Rule(notation)](const OpCall& call, Signature& signature) {
            signature = rule.signature(call);
            gather_lacking(call, signature);
          }};
}

/// Matrices or vectors on the right: torch infers a batch of vectors from the sizes.
void describe_solve(const OpCall& call, Signature& signature) {
  static const Rule matrices = batches_of("…__,…__->…__,…__,…_,…"), vectors = batches_of("…__,…_->…_,…__,…_,…");
  const c10::IntArrayRef left = call.operands[0].sizes, right = call.operands[1].sizes;
  const bool is_vector =
      right.size() == 1 || (right.size() + 1 == left.size() && right == left.slice(0, left.size() - 1));
  signature = (is_vector ? vectors : matrices).signature(call);
}

/// Along a transformed dim the result may be longer or shorter than the input.
void describe_transform(const OpCall& call, Signature& signature) {
  const Axes input = signature.add_factors(call.operands[0].sizes);
  Axes output = input;
  for (int64_t dim : call.arg("dim").toIntVector()) {
    const int64_t at = c10::maybe_wrap_dim(dim, static_cast<int64_t>(input.size()), /*wrap_scalar=*/false);
    signature.factors[input[at].factor].is_whole = true;
    output[at].factor = signature.add_factor(0);
    signature.factors.back().is_whole = true;
  }
  signature.set({input}, {output});
}

}  // namespace

void register_linalg(RuleTable& table) {
  const auto add = [&](std::initializer_list<std::string_view> ops, const char* notation) {
    table.add(ops, batches_of(notation));
  };
  add({"aten::cholesky", "aten::cholesky_inverse", "aten::linalg_matrix_exp"}, "…__->…__");
  add({"aten::cholesky_solve", "aten::linalg_solve_triangular"}, "…__,…__->…__");
  add({"aten::triangular_solve"}, "…__,…__->…__,…__");
  add({"aten::linalg_qr"}, "…__->…__,…__");
  add({"aten::linalg_lu"}, "…__->…__,…__,…__");
  add({"aten::linalg_householder_product"}, "…__,…_->…__");
  add({"aten::ormqr", "aten::linalg_lu_solve", "aten::linalg_ldl_solve"}, "…__,…_,…__->…__");
  add({"aten::linalg_inv_ex", "aten::linalg_cholesky_ex"}, "…__->…__,…");
  add({"aten::_linalg_det"}, "…__->…,…__,…_");
  add({"aten::_linalg_slogdet"}, "…__->…,…,…__,…_");
  add({"aten::_linalg_eigh", "aten::linalg_eig"}, "…__->…_,…__");
  add({"aten::_linalg_svd"}, "…__->…__,…_,…__");
  add({"aten::linalg_lu_factor_ex", "aten::linalg_ldl_factor_ex"}, "…__->…__,…_,…");
  add({"aten::lu_unpack"}, "…__,…_->…__,…__,…__");
  table.add("aten::_linalg_solve_ex", Rule("batches of systems", describe_solve));
  table.add({"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"},
            Rule("Fourier transform", describe_transform).linear().sampled());
  table.add("aten::_linalg_check_errors", Rule::gathered());
}

}  // namespace shardwise
