// runtime/rules/op_info.h: what dispatch needs to know of an operator's schema, worked out once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>

namespace shardwise {

class Rule;

struct OpInfo {
  explicit OpInfo(c10::OperatorHandle op);

  struct Arg {
    bool is_number = false;  // Scalar or float: its value never decides a layout where a rule exists
    bool is_written = false;
    bool is_aliased = false;  // a view of it is returned
    bool is_index = false;    // indices or a mask: plain ones count as replicated
  };

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  c10::SmallVector<Arg, 8> args;
  /// Per return: the argument that it is (mutated and out= arguments), or -1.
  c10::SmallVector<int, 2> returned_arg;
  bool is_view = false;
  bool writes = false;
  const Rule* rule = nullptr;  // null: replicate fallback

  size_t n_args() const { return args.size(); }
  size_t n_returns() const { return returned_arg.size(); }
  /// The position of argument `name`. Throws: c10::ValueError where the schema has none.
  size_t arg_index(std::string_view name) const;
};

}  // namespace shardwise
