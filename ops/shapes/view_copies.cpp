// ops/shapes/view_copies.cpp: the _copy forms of views, and views of complex numbers as pairs of real ones.
#include "ops/families.h"
#include "ops/support/axes.h"
#include "ops/support/kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace shardwise {
namespace {

/// Implements "slice_copy.Tensor" as a clone of "slice.Tensor", whose derivative applies.
class ViewThenClone final : public c10::OperatorKernel {
 public:
  explicit ViewThenClone(c10::OperatorHandle view) : view_(std::move(view)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    view_.callBoxed(stack);
    c10::IValue& result = stack->back();
    if (result.isTensor()) {
      result = result.toTensor().clone(at::MemoryFormat::Contiguous);
      return;
    }
    c10::List<at::Tensor> copies;
    for (const at::Tensor& view : result.toTensorVector()) copies.push_back(view.clone(at::MemoryFormat::Contiguous));
    result = std::move(copies);
  }

 private:
  c10::OperatorHandle view_;
};

/// `name`: "slice", `overload`: "Tensor" or "".
void add_copied_view(const std::string& name, const std::string& overload) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto view = dispatcher.findSchema({"aten::" + name, overload});
  const auto copy = dispatcher.findSchema({"aten::" + name + "_copy", overload});
  if (!view || !copy) return;  // another torch
  const std::string op = name + "_copy" + (overload.empty() ? "" : "." + overload);
  for (AtenKernels* kernels : {&aten_kernels(), &aten_autograd_kernels()})
    kernels->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ViewThenClone>(*view)));
}

/// Also for shapes that no view of `self` can have.
at::Tensor view_copy(const at::Tensor& self, c10::IntArrayRef size) {
  return self.is_contiguous() ? self.view(size).clone() : self.contiguous().view(size);
}

/// A new last dim holds the real and the imaginary part.
void describe_as_real(const OpCall& call, Signature& signature) {
  Axes axes = add_axes(signature, call.operands[0].sizes);
  signature.inputs = {axes};
  axes.push_back({});
  signature.outputs = {axes};
}

void describe_as_complex(const OpCall& call, Signature& signature) {
  Axes axes = add_axes(signature, call.operands[0].sizes);
  signature.inputs = {axes};
  signature.factors.back().is_whole = true;
  axes.pop_back();
  signature.outputs = {axes};
}

}  // namespace

void register_view_copies(RuleTable& table) {
  for (const char* name : {"as_strided", "expand", "permute", "squeeze", "t", "unsqueeze", "view_as_real",
                           "view_as_complex", "split_with_sizes", "unfold", "_reshape_alias", "narrow"})
    add_copied_view(name, "");
  add_composition("view_copy", &view_copy);
  add_copied_view("slice", "Tensor");
  add_copied_view("select", "int");
  add_copied_view("transpose", "int");
  add_copied_view("split", "Tensor");
  add_copied_view("unbind", "int");
  add_copied_view("squeeze", "dim");
  add_copied_view("squeeze", "dims");
  add_copied_view("view", "dtype");
  const auto view = [](const char* text, Rule::Describe describe) { return Rule(text, std::move(describe)).linear(); };
  table.add("aten::view_as_real", view("view_as_real", describe_as_real));
  table.add("aten::view_as_complex", view("view_as_complex", describe_as_complex));
}

}  // namespace shardwise
