// ops/sparse/sparse_rule.h: how an operator on sparse tensors runs on their local shards, as one value per operator.
//
//   {"neg", {.is_linear = true}}, {"sqrt", {.is_of_coalesced = true}}
//
// The leader is the operand that is written to, else a dense operand if the result is dense, else the first sparse operand. All other operands are
// redistributed to the leader's layout, and the operator runs on each local shard.
#pragma once

#include "runtime/rules/op_info.h"

namespace shardwise {

struct SparseRule {
  enum class Result : uint8_t {
    kSame,   // the leader's indices with other values; new indices if two operands are sparse
    kOther,  // new indices
    kSum,    // dense if an operand is dense, else new indices
    kDense,
  };
  Result result = Result::kSame;
  /// Partial sums pass.
  bool is_linear = false;
  /// Partial sums pass if the other operands are 0-dim.
  bool is_linear_by_numbers = false;
  /// Needs one entry per index: operands are coalesced first.
  bool is_of_coalesced = false;
};

/// The rule of an aten operator, in place or not; null if it has none, and for out=.
const SparseRule* find_sparse_rule(const OpInfo& op);

/// Runs one call whose arguments are on `stack`, and leaves its result there.
/// Throws: as dispatch(), and c10::NotImplementedError for results whose sizes differ from the leader's.
void run_sparse(const OpInfo& op, const SparseRule& rule, torch::jit::Stack* stack);

}  // namespace shardwise
