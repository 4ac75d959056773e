// runtime/dispatch/plain_operand.h: which torch.Tensors may stand next to distributed ones.
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace shardwise {

/// Why `plain`, an operand of this role, does not count as replicated next to DTensors of `mesh`: what follows the operator's name in
/// an error. Nothing where it does:
///   - an index or a mask;
///   - within torch's own composed operators and derivative formulas, which make such from the shapes at hand (in forward mode one element,
///     expanded), and in the backward;
///   - under ImplicitReplication;
///   - within the forward of a distributed module, unless its plain arguments differ between ranks (runtime/api/forward_scope.h). Then not
///     even indices and masks do;
///   - where it has one element and OneElementReplicas are on, if all ranks of the mesh have the same one.
/// Where SHARDWISE_CHECK=1 the ranks compare each that counts by the first and fourth rule.
/// `as`: words on what it stands for. `is_read`: its values count. The same on all ranks; sends nothing, but collective over the mesh where SHARDWISE_CHECK=1 and where
/// OneElementReplicas are on.
std::optional<std::string> objection_to_plain(const at::Tensor& plain, OperandRole role, const MeshPtr& mesh,
                                              const std::string& as = {}, bool is_read = true);

/// Admits `plain`, argument `arg` of `op`, as a replica, whose gradients will be plain, too.
/// Throws: c10::ValueError where there is an objection.
void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg, const MeshPtr& mesh);

/// Process-wide, off at first: whether plain tensors of one element count as replicas, as torch.distributed.tensor takes them. Each time the
/// ranks compare theirs, so that a value of one rank's own stays an error.
class OneElementReplicas {
 public:
  static void set(bool are_on);
};

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
