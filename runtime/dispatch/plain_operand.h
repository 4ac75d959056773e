// runtime/dispatch/plain_operand.h: which torch.Tensors may stand next to distributed ones.
#pragma once

#include "runtime/rules/op_info.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// A plain tensor next to distributed ones counts as replicated where it is an index, a mask or a recurrent layer's zero state,
/// within torch's own composed operators and derivative formulas (which make such from the shapes at hand; in forward mode zeros),
/// and under ImplicitReplication.
/// Throws: c10::ValueError for any other.
void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg);

/// While it lives, this thread's torch.Tensors next to distributed ones count as replicated.
class ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  static bool is_on();

 private:
  bool outer_;
};

}  // namespace shardwise
