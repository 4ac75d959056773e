// ops/elementwise/copies.cpp: copies, casts and aliases.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/overloads.h"

#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>
#include <c10/core/Stream.h>

namespace shardwise {
namespace {

// Neither rule is sampled(): the memory format argument decides the strides.

Rule copy() {
  auto describe = [elementwise = pointwise()](const OpCall& call, Signature& signature) {
    signature = elementwise.signature(call);
  };
  return Rule("pointwise", describe).linear(Linearity::kPass);
}

/// A cast commutes with a sum only where the result dtype can hold every term.
Rule cast() {
  return {"pointwise linear to floating", [elementwise = pointwise()](const OpCall& call, Signature& signature) {
            signature = elementwise.signature(call);
            const c10::ScalarType to = call.outputs.at(0).dtype;
            if (c10::isFloatingType(to) || c10::isComplexType(to)) signature.linearity = Linearity::kAll;
          }};
}

/// The memory of every piece is in use on `stream`.
void record_stream(at::Tensor& self, c10::Stream stream) {
  for (at::Tensor piece : maybe_dtensor(self)->shards()) piece.record_stream(stream);
}

}  // namespace

void register_copies(RuleTable& table) {
  // torch sets a lazy flag, which the local shards would carry and the DTensor would not: compute at once.
  add_composition("_conj", +[](const at::Tensor& self) { return at::conj_physical(self); });
  add_composition("_neg_view", +[](const at::Tensor& self) { return at::neg(self); });
  aten_kernels().impl("record_stream", &record_stream);
  add_overloads(table,
                {"clone", "detach", "alias", "lift", "lift_fresh", "alias_copy", "detach_copy", "lift_fresh_copy"},
                copy());
  add_overloads(table, {"copy", "_to_copy"}, cast());
}

}  // namespace shardwise
