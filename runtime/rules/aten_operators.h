// runtime/rules/aten_operators.h: the operators of aten that torch knows, listed once for all who register kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>

namespace shardwise {

struct AtenOperator {
  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"

  /// As torch::Library::impl() takes it: "add.Tensor".
  const char* short_name() const { return name.c_str() + 6; }
};

/// All of them, sorted by name.
c10::ArrayRef<AtenOperator> aten_operators();

/// The overloads of `name` ("aten::add").
c10::ArrayRef<AtenOperator> overloads_of(std::string_view name);

}  // namespace shardwise
