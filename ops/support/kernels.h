// ops/support/kernels.h: kernels of aten operators on distributed tensors, in place of a rule.
#pragma once

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/event_stream.h"
#include "runtime/dispatch/prepare_arguments.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace shardwise {

namespace detail {

/// prepare_operand() for the tensors of a kernel's argument.
template <class Arg>
void prepare(const Arg& arg) {
  if constexpr (std::is_same_v<Arg, at::Tensor>) {
    if (auto* impl = maybe_dtensor(arg)) prepare_operand(*impl);
  } else if constexpr (std::is_same_v<Arg, std::optional<at::Tensor>>) {
    if (arg) prepare(*arg);
  } else if constexpr (std::is_same_v<Arg, at::ITensorListRef> || std::is_same_v<Arg, at::TensorList> ||
                       std::is_same_v<Arg, c10::List<std::optional<at::Tensor>>>) {
    for (const auto& element : arg) prepare<std::decay_t<typename Arg::value_type>>(element);
  }
}

/// True for an argument whose local tensor is an object of a tensor class.
template <class Arg>
bool holds_class(const Arg& arg) {
  if constexpr (std::is_same_v<Arg, at::Tensor>) {
    const auto* impl = maybe_dtensor(arg);
    return impl && impl->holds_subclass();
  } else if constexpr (std::is_same_v<Arg, std::optional<at::Tensor>>) {
    return arg && holds_class(*arg);
  } else {
    return false;
  }
}

/// Null for an argument that a kernel only reads.
template <class Arg>
std::nullptr_t write_to(const Arg&) {
  return nullptr;
}
inline MemoryWrite write_to(at::Tensor& written) {
  const auto* impl = maybe_dtensor(written);
  return impl ? impl->begin_write() : MemoryWrite(nullptr);
}

}  // namespace detail

/// Registers kernels for one dispatch key of aten.
class AtenKernels {
 public:
  explicit AtenKernels(c10::DispatchKey key)
      : key_(key), library_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  /// Messages that the kernel sends are counted for `op`. A trace of operators has a line for `op`, unless the operators that the kernel calls have
  /// lines of their own.
  template <class Return, class... Args>
  void impl(const char* op, Return (*kernel)(Args...)) {
    impl(op, torch::CppFunction([name = std::string("aten::") + op, kernel](Args... args) -> Return {
           return run(name, kernel, std::forward<Args>(args)...);
         }));
  }
  void impl(const char* op, torch::CppFunction&& kernel);

  /// impl() for a kernel that reads the memory of its arguments. An object of a tensor class has no memory to read, so the class's own
  /// operator is called instead: by the operator's rule, and without a rule on gathered arguments.
  template <class Return, class... Args>
  void impl_in_memory(const char* op, Return (*kernel)(Args...)) {
    const auto checked = [name = std::string("aten::") + op, kernel](c10::DispatchKeySet keys, Args... args) -> Return {
      if ((detail::holds_class<std::decay_t<Args>>(args) || ...)) [[unlikely]] {
        auto stack = c10::impl::boxArgs<Args...>(std::forward<Args>(args)...);
        call_class(name, keys, stack);
        return c10::impl::PopResult<Return>::call(stack);
      }
      return run(name, kernel, std::forward<Args>(args)...);
    };
    impl(op, torch::CppFunction(checked));
  }
  torch::Library& library() { return library_; }

 private:
  template <class Kernel, class... Args>
  static decltype(auto) run(const std::string& name, Kernel* kernel, Args&&... args) {
    const CommScope scope(name.c_str());
    const KernelSpan span(name);
    (detail::prepare<std::decay_t<Args>>(args), ...);
    [[maybe_unused]] const auto writes = std::make_tuple(detail::write_to(args)...);
    return kernel(std::forward<Args>(args)...);
  }
  /// Calls the operator as if it had no kernel of ours. `keys`: those that remain to be handled, with this kernel's.
  static void call_class(const std::string& name, c10::DispatchKeySet keys, torch::jit::Stack& stack);

  const c10::DispatchKey key_;
  torch::Library library_;
};

/// Kernels below autograd: torch's derivative formula stays.
AtenKernels& aten_kernels();

/// Kernels above autograd, in place of torch's derivative formula.
AtenKernels& aten_autograd_kernels();

/// Implements `op` ("select.int") by a composition of other operators on distributed tensors. Their derivatives apply.
template <class Kernel>
void add_composition(const char* op, Kernel* kernel) {
  aten_kernels().impl(op, kernel);
  aten_autograd_kernels().impl(op, kernel);
}

/// Implements each of these operators ("rot90") by torch's own composition (its CompositeExplicitAutograd kernel). Its parts have rules or kernels of
/// ours, and torch's derivative formula stays. Not for compositions that read a tensor's memory or make plain tensors.
void add_torch_compositions(std::initializer_list<const char*> ops);

/// The operator `name` ("shardwise::gather") with signature `Function`.
template <class Function>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace shardwise
