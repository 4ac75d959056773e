// ops/elementwise/foreach.cpp: operators on lists of tensors, element by element: foreach and fused optimizer steps.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

/// The rule of each operator ("add") for these overloads, and of its in-place form.
void add_arithmetic(RuleTable& table, std::initializer_list<const char*> names,
                    std::initializer_list<const char*> overloads, const Rule& rule) {
  for (const char* name : names)
    for (const char* overload : overloads)
      for (const char* suffix : {"", "_"})
        table.add(fmt::format("aten::_foreach_{}{}.{}", name, suffix, overload), rule.per_element());
}

}  // namespace

void register_foreach(RuleTable& table) {
  add_arithmetic(table, {"add", "sub"}, {"List"}, pointwise().linear());
  add_arithmetic(table, {"add", "sub"}, {"Scalar", "ScalarList"}, pointwise());
  add_arithmetic(table, {"add"}, {"Tensor"}, pointwise());
  add_arithmetic(table, {"mul", "div"}, {"Scalar", "ScalarList"}, pointwise().linear());
  add_arithmetic(table, {"mul"}, {"List", "Tensor"}, pointwise().multilinear());
  add_arithmetic(table, {"div"}, {"List", "Tensor"}, pointwise().linear_in_first());
  add_overloads(table, {"_foreach_neg"}, pointwise().linear().per_element());
  const Rule by_element = pointwise().per_element();
  add_overloads(table,
                {"_foreach_pow", "_foreach_addcmul", "_foreach_addcdiv", "_foreach_lerp", "_foreach_clamp_max",
                 "_foreach_clamp_min", "_foreach_maximum", "_foreach_minimum", "_foreach_copy", "_foreach_clone",
                 "_foreach_zero"},
                by_element);
  add_overloads(table, {"_foreach_abs",   "_foreach_acos",    "_foreach_asin", "_foreach_atan",       "_foreach_ceil",
                        "_foreach_cos",   "_foreach_cosh",    "_foreach_erf",  "_foreach_erfc",       "_foreach_exp",
                        "_foreach_expm1", "_foreach_floor",   "_foreach_frac", "_foreach_lgamma",     "_foreach_log",
                        "_foreach_log10", "_foreach_log1p",   "_foreach_log2", "_foreach_reciprocal", "_foreach_round",
                        "_foreach_rsqrt", "_foreach_sigmoid", "_foreach_sign", "_foreach_sin",        "_foreach_sinh",
                        "_foreach_sqrt",  "_foreach_tan",     "_foreach_tanh", "_foreach_trunc"},
                by_element);
  add_overloads(table, {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"},
                pointwise().per_element(/*scratch=*/"grads"));
  add_torch_compositions({"_foreach_norm.Scalar", "_foreach_max"});
}

}  // namespace shardwise
