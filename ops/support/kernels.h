// ops/support/kernels.h: operators that are answered by a kernel of our own instead of a rule.
#pragma once

#include "runtime/comm/comm_trace.h"
#include "runtime/dispatch/op_trace.h"
#include "runtime/tensor/dtensor_impl.h"

#include <torch/library.h>

#include <string>
#include <utility>

namespace shardwise {

/// Registers kernels for one dispatch key of aten.
class AtenKernels {
 public:
  explicit AtenKernels(c10::DispatchKey key) : library_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  /// The kernel says whose it is: what it sends is sent for operator `op`, and a trace of operators has a line for it, unless it is
  /// composed of operators that have theirs.
  template <class Return, class... Args>
  void impl(const char* op, Return (*kernel)(Args...)) {
    library_.impl(op, [name = std::string("aten::") + op, kernel](Args... args) -> Return {
      const CommScope scope(name.c_str());
      const KernelTrace trace(name);
      return kernel(std::forward<Args>(args)...);
    });
  }
  void impl(const char* op, torch::CppFunction&& kernel) { library_.impl(op, std::move(kernel)); }
  torch::Library& library() { return library_; }

 private:
  torch::Library library_;
};

/// Kernels of aten operators on distributed tensors, below autograd. They must be there before register_dispatch(), which gives
/// every other operator its own.
AtenKernels& aten_kernels();

/// The same above autograd, in place of torch's derivative formula.
AtenKernels& aten_autograd_kernels();

/// Answers `op` ("select.int") by other operators on distributed tensors, whose derivatives then apply.
template <class Kernel>
void add_composition(const char* op, Kernel* kernel) {
  aten_kernels().impl(op, kernel);
  aten_autograd_kernels().impl(op, kernel);
}

}  // namespace shardwise
