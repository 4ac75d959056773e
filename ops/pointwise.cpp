// ops/pointwise.cpp: elementwise operators.
#include "ops/families.h"

namespace shardwise {

void register_pointwise(RuleTable& table) {
  table.add({"aten::add.Tensor", "aten::add_.Tensor", "aten::sub.Tensor"}, pointwise().linear());
  table.add("aten::mul.Tensor", pointwise().multilinear());
  table.add("aten::relu", pointwise());
}

}  // namespace shardwise
