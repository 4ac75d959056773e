// ops/support/plain_self.h: kernels whose first operand may be plain: torch's derivative formulas and compositions call them on plain
// zeros that they made.
#pragma once

#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

namespace shardwise {

template <auto kernel>
struct PlainSelf;

/// Calls `kernel` with a replica in place of a plain `self`, where check_plain() allows one. The replica shares its memory.
template <class Return, class Self, class... Rest, Return (*kernel)(Self, Rest...)>
struct PlainSelf<kernel> {
  static Return call(Self self, Rest... rest) {
    if (is_dtensor(self)) [[likely]]
      return kernel(self, rest...);
    static const OpInfo op(*c10::Dispatcher::singleton().findSchema(torch::jit::parseName("aten::" + name)));
    if (self.dim() > 0) check_plain(op, self, 0);
    MeshPtr mesh;
    (look_at(rest, mesh), ...);
    at::Tensor replica = from_local(self.detach(), mesh, Placements(mesh->ndim()), {.shape = Dims(self.sizes())});
    if constexpr (std::is_reference_v<Return>) {
      kernel(replica, rest...);
      return const_cast<at::Tensor&>(static_cast<const at::Tensor&>(self));
    } else {
      return kernel(replica, rest...);
    }
  }

  inline static std::string name;  // "scatter.src"

 private:
  template <class Value>
  static void look_at(const Value&, MeshPtr&) {}
  static void look_at(const at::Tensor& tensor, MeshPtr& mesh) {
    if (const auto* impl = maybe_dtensor(tensor)) mesh = impl->spec()->mesh();
  }
  static void look_at(const c10::List<std::optional<at::Tensor>>& tensors, MeshPtr& mesh) {
    for (const std::optional<at::Tensor> tensor : tensors)
      if (tensor) look_at(*tensor, mesh);
  }
};

/// Registers `kernel` for aten operator `name`.
template <auto kernel>
void add_with_plain_self(const char* name) {
  PlainSelf<kernel>::name = name;
  aten_kernels().impl(name, &PlainSelf<kernel>::call);
}

}  // namespace shardwise
