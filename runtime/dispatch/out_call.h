// runtime/dispatch/out_call.h: runs operators with out= arguments through their form without out=.
#pragma once

#include "runtime/rules/op_info.h"

#include <ATen/core/stack.h>

#include <memory>

namespace shardwise {

/// "aten::mm.out" runs "aten::mm" and copies the result into the pieces of `out`. An `out` of other sizes takes over the result and its
/// layout, in the way that a plain one is resized.
class OutCall {
 public:
  /// Null for operators without out= arguments, and for those that torch has in no other form.
  static std::unique_ptr<OutCall> find(const OpInfo& op);

  /// Runs the call whose arguments are on `stack`.
  /// Throws: c10::ValueError for an `out` that is not a DTensor (check_plain); the errors of the operator.
  void run(const OpInfo& op, torch::jit::Stack* stack) const;

 private:
  explicit OutCall(c10::OperatorHandle functional) : functional_(std::move(functional)) {}

  c10::OperatorHandle functional_;
};

}  // namespace shardwise
