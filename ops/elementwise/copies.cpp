// ops/elementwise/copies.cpp: copies, casts and aliases, and new tensors like another: with its layout if sizes are equal, else replicated.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/tensor/registrations.h"

#include <ATen/Functions.h>
#include <c10/core/Stream.h>

#include <memory>

namespace shardwise {
namespace {

/// A device argument adds a dispatch key, and the key of meta has priority over ours: torch would make a plain tensor.
class ToMeta final : public c10::OperatorKernel {
 public:
  explicit ToMeta(const c10::OperatorHandle& op) : info_(op) { info_.rule = RuleTable::global().find(info_.name); }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (is_dtensor((*stack)[stack->size() - info_.n_args()].toTensor()))
      dispatch(info_, stack);
    else
      op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  }

 private:
  OpInfo info_;
};

void register_to_meta() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  registrations("aten", c10::DispatchKey::Meta)
      .impl("_to_copy", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ToMeta>(op)));
}

/// Decides whether `tensor.data = other` is allowed: always between distributed tensors, on any devices. So parameters stay the same objects, and
/// tied ones stay tied, when a module moves to another device.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  return is_dtensor(self) && is_dtensor(from);
}

/// Records that the memory of every piece is in use on `stream`.
void record_stream(at::Tensor& self, c10::Stream stream) {
  for (at::Tensor piece : maybe_dtensor(self)->shards()) piece.record_stream(stream);
}

/// Size and stride arguments of this rank's piece.
void localize_strided(const LocalCall& local, std::vector<c10::IValue>& args) {
  const OpInfo& op = local.call.op;
  const Dims& sizes = local.outputs[0].sizes;
  const Dims strides = dense_strides(sizes, local.call.arg("stride").toIntVector());
  args[op.arg_index("size")] = std::vector<int64_t>(sizes.begin(), sizes.end());
  args[op.arg_index("stride")] = std::vector<int64_t>(strides.begin(), strides.end());
}

}  // namespace

void register_copies(RuleTable& table) {
  // torch sets a lazy flag, which the local shards would carry and the DTensor would not: compute eagerly instead.
  add_composition("_conj", +[](const at::Tensor& self) { return at::conj_physical(self); });
  add_composition("_neg_view", +[](const at::Tensor& self) { return at::neg(self); });
  aten_kernels().impl("detach_", +[](at::Tensor& self) -> at::Tensor& { return self; });  // autograd has done it
  aten_kernels().impl("record_stream", &record_stream);
  aten_kernels().impl("_has_compatible_shallow_copy_type", &has_compatible_type);
  const Rule copy = pointwise().sampled(false);  // the memory format argument decides the strides
  add_overloads(table,
                {"clone", "detach", "alias", "lift", "lift_fresh", "alias_copy", "detach_copy", "lift_fresh_copy"},
                copy.linear(Linearity::kPass));
  table.keep_symbols({"aten::clone", "aten::detach", "aten::alias", "aten::_to_copy", "aten::copy_", "aten::empty_like",
                      "aten::full_like", "aten::ones_like", "aten::zeros_like", "aten::new_empty", "aten::new_full",
                      "aten::new_ones", "aten::new_zeros"});
  add_overloads(table, {"copy", "_to_copy"}, copy.linear());
  table.add({"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"}, pointwise().shape_only());
  table.add({"aten::new_empty", "aten::new_zeros", "aten::new_ones", "aten::new_full"},
            pointwise().shape_only().sizes_in("size"));
  table.add("aten::new_empty_strided", pointwise().shape_only().localized(localize_strided));
  register_to_meta();
}

}  // namespace shardwise
