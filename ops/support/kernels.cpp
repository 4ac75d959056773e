#include "ops/support/kernels.h"

namespace shardwise {

// Registrations last as long as the process.
AtenKernels& aten_kernels() {
  static auto* kernels = new AtenKernels(kTensorKey);
  return *kernels;
}

AtenKernels& aten_autograd_kernels() {
  static auto* kernels = new AtenKernels(kAutogradKey);
  return *kernels;
}

}  // namespace shardwise
