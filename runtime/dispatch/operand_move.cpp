#include "runtime/dispatch/operand_move.h"

#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/number_move.h"

namespace shardwise {

Shards move_operand(const DTensorImpl& operand, const SpecPtr& to) {
  const SpecPtr& spec = operand.spec();
  const bool is_number_elsewhere =
      spec->mesh() != to->mesh() && spec->dim() == 0 && !spec->mesh()->is_meta() && !to->mesh()->is_meta();
  return is_number_elsewhere ? move_number(spec, operand.shards(), to) : move(operand, to);
}

at::Tensor narrowed_to(at::Tensor tensor, const Box& box) {
  const int64_t skipped = static_cast<int64_t>(box.sizes.size()) - tensor.dim();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1) tensor = tensor.narrow(dim, box.offsets[skipped + dim], box.sizes[skipped + dim]);
  return tensor;
}

}  // namespace shardwise
