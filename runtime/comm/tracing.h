// runtime/comm/tracing.h: whether torch's tracers run a program on tensors without values, as torch.compile and torch.export do.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

namespace shardwise {

/// True where operators of this thread give torch's FakeTensors: nothing may be sent, for there are no values to send.
bool is_tracing();

/// Of what sends messages that depend on values, or draws random numbers. Throws: c10::NotImplementedError while is_tracing(), which
/// torch.compile takes for a break of the graph.
void check_not_traced(const char* operation);

/// Within its life operators of this thread run past all tracers: what is worked out once for many calls is no part of the program
/// that is traced.
class OutsideTracers {
 public:
  OutsideTracers() : no_modes_(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard no_modes_;
  c10::impl::DisablePythonDispatcher no_python_kernels_;
};

}  // namespace shardwise
