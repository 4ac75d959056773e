// runtime/dispatch/plain_operand.h: rules for torch.Tensors as operands next to distributed ones.
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace shardwise {

/// The reason why `plain`, an operand of this role, does not count as replicated next to DTensors of `mesh`, as the text that follows the
/// operator's name in an error. Nothing if it does count, which is the case for a tensor that
///   - is an index or a mask;
///   - is used within torch's own composed operators and derivative formulas, which make such tensors from shapes (in forward mode one
///     element, expanded), or in the backward;
///   - is used under ImplicitReplication;
///   - is used within the forward of a distributed module, unless the forward's plain arguments differ between ranks
///     (runtime/api/forward_scope.h). If they differ, not even indices and masks count;
///   - has one element that is equal on all ranks of the mesh, while OneElementReplicas are on.
/// With SHARDWISE_CHECK=1 the ranks compare each tensor that counts by the first or fourth rule.
/// `as`: a text for the error that says what the tensor is. `is_read`: whether the operator reads its values. All ranks get the same
/// result. Sends nothing, except that it is collective over the mesh under SHARDWISE_CHECK=1 and while OneElementReplicas are on.
std::optional<std::string> objection_to_plain(const at::Tensor& plain, OperandRole role, const MeshPtr& mesh,
                                              const std::string& as = {}, bool is_read = true);

/// Accepts `plain`, argument `arg` of `op`, as a replica. Its gradients will be plain as well.
/// Throws: c10::ValueError with objection_to_plain(), if there is one.
void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg, const MeshPtr& mesh);

/// A process-wide switch, off by default: whether plain tensors of one element count as replicas, as in torch.distributed.tensor. The ranks
/// compare theirs each time, so a value that differs between ranks is still an error.
class OneElementReplicas {
 public:
  static void set(bool are_on);
};

/// During its lifetime, this thread's torch.Tensors next to distributed ones count as replicated.
class ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  static bool is_on();

 private:
  bool outer_;
};

/// From now on `tensor` gets gradients of its own kind, even if torch's derivative formulas give others: a plain tensor whole ones on every rank, and a
/// DTensor distributed ones, with plain gradients as replicas. Costs nothing in the forward, and the replication of a distributed gradient in the
/// backward. Further calls for the same tensor do nothing. Pre: autograd records operations on `tensor`.
void keep_gradient_kind(const at::Tensor& tensor);
/// The same for an operand of a write to a plain tensor. Does nothing if it is plain, or if autograd does not record it.
void keep_distributed(const at::Tensor& operand);

}  // namespace shardwise
