#include "runtime/dispatch/operand_move.h"

#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/number_move.h"
#include "runtime/tensor/given_memory.h"
#include "runtime/tensor/reduced_value.h"
#include "runtime/tensor/write_count.h"

#include <algorithm>

namespace shardwise {
namespace {

bool writes_to(const BoundCall& call, uint64_t memory_id) {
  return call.op.writes && std::ranges::any_of(call.operands, [&](const BoundOperand& other) {
           return other.impl && call.op.args[other.arg].is_written && other.impl->memory_id() == memory_id;
         });
}

}  // namespace

at::Tensor known_replica(const DTensorImpl& operand) {
  const auto known = operand.reduced();
  return known && spec_of(known->tensor())->layout().is_replicated() ? known->tensor() : at::Tensor();
}

Shards move_operand(const BoundCall& call, const DTensorImpl& operand, const SpecPtr& to) {
  const SpecPtr& spec = operand.spec();
  if (spec->mesh() != to->mesh() && spec->dim() == 0 && !spec->mesh()->is_meta() && !to->mesh()->is_meta())
    return move_number(spec, operand.shards(), to);
  const bool is_kept = spec->layout().is_partial() && !to->layout().is_partial() && spec->mesh() == to->mesh() &&
                       !operand.view_link() && !operand.is_sparse() && operand.version_counter().enabled() &&
                       !is_given(operand) && !writes_to(call, operand.memory_id());
  if (auto rows = move_owned_rows(operand, to)) return *std::move(rows);
  if (!is_kept) return move(spec, operand.shards(), to);
  const auto known = operand.reduced();
  const DTensorImpl& source = known ? *maybe_dtensor(known->tensor()) : operand;
  if (known && source.spec() == to) return source.shards();
  const uint32_t count = write_count(operand);
  Shards moved = move(source.spec(), source.shards(), to);
  if (!known || to->layout().is_replicated())
    operand.set_reduced(std::make_shared<const ReducedValue>(operand, wrap(to, moved), count));
  return moved;
}

at::Tensor narrowed_to(at::Tensor tensor, const Box& box) {
  const int64_t skipped = static_cast<int64_t>(box.sizes.size()) - tensor.dim();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1) tensor = tensor.narrow(dim, box.offsets[skipped + dim], box.sizes[skipped + dim]);
  return tensor;
}

}  // namespace shardwise
