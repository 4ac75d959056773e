#include "ops/support/own_operator.h"

#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/symbolic_sizes.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <string>

namespace shardwise {
namespace {

/// The library of our operators; lives as long as the process.
torch::Library& own_library() {
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "shardwise", std::nullopt, __FILE__, __LINE__);
  return *library;
}

/// The key of the kernel for meta tensors. No tensor has it: with_numbers() calls the kernel.
constexpr auto kShapeKey = c10::DispatchKey::FPGA;

/// A tracer's tensor that once had symbols is marked as symbolic, although they are fixed by now. torch refuses to tell its sizes as numbers.
bool has_fixed_symbols(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         std::ranges::all_of(tensor.sym_sizes(),
                             [](const c10::SymInt& size) { return size.maybe_as_int().has_value(); });
}

/// Calls the kernel for meta tensors, with tensors of numbers in the place of those.
void with_numbers(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto n_args = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto value = stack->end() - n_args; value != stack->end(); ++value) {
    if (!has_fixed_symbols(*value)) continue;
    const at::Tensor tensor = value->toTensor();
    *value = at::empty_strided(sizes_of(tensor), strides_of(tensor), tensor.options().device(at::kMeta));
  }
  op.callBoxedForDispatchKey(kShapeKey, *stack);
}

}  // namespace

void define_operator(const char* schema, const OwnKernels& kernels) {
  own_library().def(schema);
  const std::string text = schema;
  const std::string name = text.substr(0, text.find('('));
  const auto add = [&](c10::DispatchKey key, const OwnKernel& kernel) {
    own_library().impl(name.c_str(), torch::dispatch(key, kernel()));
  };
  for (const auto device : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::PrivateUse1})
    add(device, kernels.compute);
  add(kShapeKey, kernels.shape ? kernels.shape : kernels.compute);
  own_library().impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta,
                                                   torch::CppFunction::makeFromBoxedFunction<&with_numbers>()));
  if (kernels.derivative) add(kAutogradKey, kernels.derivative);
  if (kernels.traced) add(c10::DispatchKey::Functionalize, kernels.traced);
}

}  // namespace shardwise
