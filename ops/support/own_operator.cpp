#include "ops/support/own_operator.h"

#include "runtime/tensor/dtensor_impl.h"

#include <string>

namespace shardwise {
namespace {

/// The library of our operators; lives as long as the process.
torch::Library& own_library() {
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "shardwise", std::nullopt, __FILE__, __LINE__);
  return *library;
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
  add(c10::DispatchKey::Meta, kernels.shape ? kernels.shape : kernels.compute);
  if (kernels.derivative) add(kAutogradKey, kernels.derivative);
  if (kernels.traced) add(c10::DispatchKey::Functionalize, kernels.traced);
}

}  // namespace shardwise
