// ops/sparse/sparse_rule.h: how an operator goes by the pieces of sparse tensors, as one value per operator.
//
//   {"neg", {.is_linear = true}}, {"sqrt", {.is_of_coalesced = true}}
//
// The operand that is written to leads, else a dense one where the result is dense, else the first sparse one. The others are moved to
// its layout, the operator runs on each piece, and the result is laid out likewise.
#pragma once

#include "runtime/rules/op_info.h"

namespace shardwise {

struct SparseRule {
  enum class Result : uint8_t {
    kSame,   // the entries of the leader, other values; entries of its own where two operands are sparse
    kOther,  // entries of its own
    kSum,    // dense where an operand is, else entries of its own
    kDense,
  };
  Result result = Result::kSame;
  /// Partial sums pass.
  bool is_linear = false;
  /// They do where the other operands are single numbers.
  bool is_linear_by_numbers = false;
  /// Asks for the sum of all entries of an index: they are added up first.
  bool is_of_coalesced = false;
};

/// The rule of an operator of aten, in place or not; null where there is none, and for out=.
const SparseRule* find_sparse_rule(const OpInfo& op);

/// Answers one call on sparse tensors whose arguments lie on `stack`, leaving its result there.
/// Throws: as dispatch(), and c10::NotImplementedError for results whose pieces are of other sizes than the leader's.
void run_sparse(const OpInfo& op, const SparseRule& rule, torch::jit::Stack* stack);

}  // namespace shardwise
