// ops/elementwise/pointwise.cpp: elementwise operators, with broadcasting.
#include "ops/families.h"
#include "ops/support/common_rules.h"

namespace shardwise {
namespace {

void register_arithmetic(RuleTable& table) {
  table.add({"aten::add.Tensor", "aten::add_.Tensor", "aten::sub.Tensor", "aten::sub_.Tensor", "aten::rsub.Tensor"},
            pointwise().linear());
  // Sums with other tensors do not pass maxima: a rank without elements has an infinite extreme, which another infinity makes NaN.
  add_overloads(table, {"neg"},
                pointwise().linear().passing({{Reduce::kMax, Reduce::kMin, {0}}, {Reduce::kMin, Reduce::kMax, {0}}}));
  table.add({"aten::add.Scalar", "aten::add_.Scalar", "aten::sub.Scalar", "aten::sub_.Scalar", "aten::rsub.Scalar"},
            pointwise());
  table.add({"aten::mul.Scalar", "aten::mul_.Scalar", "aten::div.Scalar", "aten::div_.Scalar"}, pointwise().linear());
  table.add({"aten::mul.Tensor", "aten::mul_.Tensor"}, pointwise().multilinear());
  table.add({"aten::div.Tensor", "aten::div_.Tensor"}, pointwise().linear_in_first());
  table.add({"aten::div.Tensor_mode", "aten::div_.Tensor_mode", "aten::div.Scalar_mode", "aten::div_.Scalar_mode"},
            pointwise());
  table.add({"aten::lerp.Scalar", "aten::lerp_.Scalar"}, pointwise().linear());
  table.add({"aten::lerp.Tensor", "aten::lerp_.Tensor"}, pointwise());
  add_overloads(table, {"conj_physical", "_conj_physical", "deg2rad", "rad2deg", "zero"}, pointwise().linear());
  add_overloads(table, {"addcmul",   "addcdiv",    "pow",       "floor_divide", "remainder", "fmod",    "atan2",
                        "hypot",     "copysign",   "nextafter", "ldexp",        "heaviside", "gcd",     "lcm",
                        "logaddexp", "logaddexp2", "xlogy",     "igamma",       "igammac",   "complex", "polar"},
                pointwise());
  // The maximum over tensors that are Partial(max) is the Partial(max) of each rank's maximum.
  add_overloads(table, {"maximum"}, pointwise().passing({{Reduce::kMax, Reduce::kMax, {}}}));
  add_overloads(table, {"minimum"}, pointwise().passing({{Reduce::kMin, Reduce::kMin, {}}}));
  add_overloads(table, {"fmax", "fmin"}, pointwise());
}

void register_functions(RuleTable& table) {
  add_overloads(table, {"abs",   "sgn",       "sign",     "signbit", "angle", "reciprocal", "sqrt",     "rsqrt",
                        "exp",   "exp2",      "expm1",    "log",     "log2",  "log10",      "log1p",    "sin",
                        "cos",   "tan",       "asin",     "acos",    "atan",  "sinh",       "cosh",     "tanh",
                        "asinh", "acosh",     "atanh",    "sinc",    "floor", "ceil",       "trunc",    "round",
                        "frac",  "frexp",     "logit",    "erf",     "erfc",  "erfinv",     "lgamma",   "digamma",
                        "i0",    "polygamma", "mvlgamma", "isnan",   "isinf", "isposinf",   "isneginf", "nan_to_num"},
                pointwise());
  add_overloads(table, {"eq", "ne", "lt", "le", "gt", "ge"}, pointwise());
  add_overloads(table, {"logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or"},
                pointwise());
  add_overloads(table, {"bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"}, pointwise());
  add_overloads(table, {"__lshift__", "__rshift__", "__ilshift__", "__irshift__"}, pointwise());
  add_overloads(table, {"where", "masked_fill", "fill", "clamp", "clamp_min", "clamp_max", "threshold"}, pointwise());
}

/// Special functions; the orthogonal polynomials take (x, n).
void register_special(RuleTable& table) {
  add_overloads(table,
                {"special_airy_ai",
                 "special_bessel_j0",
                 "special_bessel_j1",
                 "special_bessel_y0",
                 "special_bessel_y1",
                 "special_entr",
                 "special_erfcx",
                 "special_i0e",
                 "special_i1",
                 "special_i1e",
                 "special_log_ndtr",
                 "special_modified_bessel_i0",
                 "special_modified_bessel_i1",
                 "special_modified_bessel_k0",
                 "special_modified_bessel_k1",
                 "special_ndtri",
                 "special_scaled_modified_bessel_k0",
                 "special_scaled_modified_bessel_k1",
                 "special_spherical_bessel_j0",
                 "special_xlog1py",
                 "special_zeta"},
                pointwise());
  add_overloads(table,
                {"special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u", "special_chebyshev_polynomial_v",
                 "special_chebyshev_polynomial_w", "special_hermite_polynomial_h", "special_hermite_polynomial_he",
                 "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
                 "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
                 "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w"},
                pointwise());
}

}  // namespace

void register_pointwise(RuleTable& table) {
  register_arithmetic(table);
  register_functions(table);
  register_special(table);
}

}  // namespace shardwise
