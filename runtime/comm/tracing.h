// runtime/comm/tracing.h: whether torch's tracers run the program on tensors without values, as in torch.compile and torch.export, and work
// outside of tracers and transforms.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

namespace shardwise {

/// True if operators of this thread return torch's FakeTensors. Nothing may be sent then, because there are no values to send.
bool is_tracing();

/// Call this in operations whose messages depend on values, or that draw random numbers. Throws: c10::NotImplementedError while
/// is_tracing(); torch.compile then breaks the graph.
void check_not_traced(const char* operation);

/// During its lifetime operators of this thread bypass all tracers. Used to compute a value that is cached for many calls, and so is not
/// part of the traced program.
class OutsideTracers {
 public:
  OutsideTracers() : no_modes_(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard no_modes_;
  c10::impl::DisablePythonDispatcher no_python_kernels_;
};

/// During its lifetime operators of this thread bypass the transforms of torch.func, which otherwise wrap new tensors, so that their memory cannot be
/// read.
class OutsideTransforms {
 private:
  c10::impl::ExcludeDispatchKeyGuard transforms_{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

}  // namespace shardwise
