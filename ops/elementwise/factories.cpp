// ops/elementwise/factories.cpp: new tensors like another: with its layout if sizes are equal, else replicated.
#include "ops/families.h"

namespace shardwise {
namespace {

/// Size and stride arguments of this rank's piece.
void localize_strided(const LocalCall& local, std::vector<c10::IValue>& args) {
  const OpInfo& op = local.call.op;
  const Dims& sizes = local.outputs[0].sizes;
  const Dims strides = dense_strides(sizes, local.call.arg("stride").toIntVector());
  args[op.arg_index("size")] = std::vector<int64_t>(sizes.begin(), sizes.end());
  args[op.arg_index("stride")] = std::vector<int64_t>(strides.begin(), strides.end());
}

}  // namespace

void register_factories(RuleTable& table) {
  table.add({"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"}, pointwise().shape_only());
  table.add({"aten::new_empty", "aten::new_zeros", "aten::new_ones", "aten::new_full"},
            pointwise().shape_only().sizes_in("size"));
  table.add("aten::new_empty_strided", pointwise().shape_only().localized(localize_strided));
}

}  // namespace shardwise
