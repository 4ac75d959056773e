#include "ops/kernels.h"

namespace shardwise {

// Registrations last as long as the process.
torch::Library& aten_kernels() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kTensorKey, __FILE__, __LINE__);
  return *library;
}

torch::Library& aten_autograd_kernels() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kAutogradKey, __FILE__, __LINE__);
  return *library;
}

}  // namespace shardwise
