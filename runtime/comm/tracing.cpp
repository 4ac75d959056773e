#include "runtime/comm/tracing.h"

#include "text/check.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>

namespace shardwise {

bool is_tracing() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) &&
         TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE).has_value();
}

void check_not_traced(const char* operation) {
  if (!is_tracing()) [[likely]]
    return;
  SW_CHECK_NOT_IMPLEMENTED(false,
                           "[{}] cannot be part of a graph: the program is being traced, and its tensors have no "
                           "values yet. Call it outside of the code that torch.export and make_fx trace. torch.compile "
                           "breaks the graph here and runs this call untraced, except with fullgraph=True.",
                           operation);
}

}  // namespace shardwise
