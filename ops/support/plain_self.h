// ops/support/plain_self.h: kernels whose first operand may be plain: torch's derivative formulas and compositions call such kernels on plain zeros
// that they made, and models call them on their own plain tensors.
#pragma once

#include "ops/support/kernels.h"
#include "runtime/dispatch/plain_operand.h"

#include <type_traits>
#include <utility>

namespace shardwise {

/// The plain argument `arg` of aten's `op`, as a replica on `mesh` that shares its memory. `keeps_history`: gradients flow through the replica.
/// Throws: as check_plain().
at::Tensor replica_of_plain(const char* op, const at::Tensor& plain, const MeshPtr& mesh, bool keeps_history,
                            size_t arg = 0);

/// Sets `mesh` to the mesh of `operand`, if it is distributed.
void find_mesh(const at::Tensor& operand, MeshPtr& mesh);
void find_mesh(const c10::List<std::optional<at::Tensor>>& operands, MeshPtr& mesh);
template <class Value>
void find_mesh(const Value&, MeshPtr&) {}
template <class Value>
void keep_distributed(const Value&) {}

template <auto kernel, bool keeps_history>
struct PlainSelf;

/// Calls `kernel` with a replica in place of a plain `self`.
template <class Return, class Self, class... Rest, Return (*kernel)(Self, Rest...), bool keeps_history>
struct PlainSelf<kernel, keeps_history> {
  static Return call(Self self, Rest... rest) {
    if (is_dtensor(self)) [[likely]]
      return kernel(self, rest...);
    MeshPtr mesh;
    (find_mesh(rest, mesh), ...);
    at::Tensor replica = replica_of_plain(name, self, mesh, keeps_history);
    if constexpr (std::is_reference_v<Return>) {
      (keep_distributed(rest), ...);
      kernel(replica, rest...);
      return const_cast<at::Tensor&>(static_cast<const at::Tensor&>(self));
    } else {
      return kernel(replica, rest...);
    }
  }

  inline static const char* name;  // "scatter.src"
};

/// Registers `kernel` for aten operator `name`.
template <auto kernel>
void add_with_plain_self(const char* name) {
  PlainSelf<kernel, false>::name = name;
  aten_kernels().impl(name, &PlainSelf<kernel, false>::call);
}

template <auto write_of>
struct WriteKernels;

/// Kernels that write what `write_of(self, arguments...)` says: to a new tensor by its written(self), or in place by its write(self).
template <class Write, class... Rest, Write (*write_of)(const at::Tensor&, Rest...)>
struct WriteKernels<write_of> {
  static at::Tensor written(const at::Tensor& self, Rest... rest) { return write_of(self, rest...).written(self); }
  static at::Tensor& write(at::Tensor& self, Rest... rest) {
    write_of(self, rest...).write(self);
    return self;
  }
};

template <auto kernel>
struct CopiedBack;

/// The in-place form of `kernel`: copies its result into `self`.
template <class... Rest, at::Tensor (*kernel)(const at::Tensor&, Rest...)>
struct CopiedBack<kernel> {
  static at::Tensor& write(at::Tensor& self, Rest... rest) {
    return self.copy_(kernel(self, std::forward<Rest>(rest)...));
  }
};

/// Registers both kernels for aten's operator `name` and its in-place form, of which `self` may be plain.
template <auto write_of>
void add_writes(const char* name, const char* name_in_place) {
  add_with_plain_self<&WriteKernels<write_of>::written>(name);
  add_with_plain_self<&WriteKernels<write_of>::write>(name_in_place);
}

/// add_with_plain_self() for add_composition().
template <auto kernel>
void add_composition_with_plain_self(const char* name) {
  PlainSelf<kernel, true>::name = name;
  add_composition(name, &PlainSelf<kernel, true>::call);
}

}  // namespace shardwise
