// runtime/rules/aten_operators.h: the list of aten operators in this torch, made once for all code that registers kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>

namespace shardwise {

struct AtenOperator {
  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"

  /// The name for torch::Library::impl(): "add.Tensor".
  const char* short_name() const { return name.c_str() + 6; }
};

/// All operators of aten, sorted by name.
c10::ArrayRef<AtenOperator> aten_operators();

/// The overloads of `name` ("aten::add").
c10::ArrayRef<AtenOperator> overloads_of(std::string_view name);

}  // namespace shardwise
