// runtime/dispatch/out_call.h: operators with out= arguments, answered by the operator without them.
#pragma once

#include "runtime/rules/op_info.h"

#include <ATen/core/stack.h>

#include <memory>

namespace shardwise {

/// "aten::mm.out" is "aten::mm" whose result is then copied to where `out` has its pieces. An `out` of other sizes takes over the
/// result and its layout, as a plain one is resized.
class OutCall {
 public:
  /// Null for operators without out= arguments and for those that torch has in no other form.
  static std::unique_ptr<OutCall> find(const OpInfo& op);

  /// Answers the call whose arguments lie on `stack`.
  /// Throws: c10::ValueError for an `out` that is no DTensor (check_plain); what the operator throws.
  void run(const OpInfo& op, torch::jit::Stack* stack) const;

 private:
  explicit OutCall(c10::OperatorHandle functional) : functional_(std::move(functional)) {}

  c10::OperatorHandle functional_;
};

}  // namespace shardwise
