// ops/shapes/view_copies.cpp: the _copy forms of views, and views of complex numbers as pairs of real ones.
#include "ops/families.h"
#include "ops/support/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

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

/// `view`: "slice.Tensor".
void add_copied_view(std::string_view view) {
  const size_t dot = std::min(view.find('.'), view.size());
  const std::string op = fmt::format("{}_copy{}", view.substr(0, dot), view.substr(dot));
  const auto source = find_operator(fmt::format("aten::{}", view));
  if (!source || !find_operator("aten::" + op)) return;  // another torch
  for (AtenKernels* kernels : {&aten_kernels(), &aten_autograd_kernels()})
    kernels->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ViewThenClone>(*source)));
}

/// Also for shapes that no view of `self` can have.
at::Tensor view_copy(const at::Tensor& self, c10::IntArrayRef size) {
  return self.is_contiguous() ? self.view(size).clone() : self.contiguous().view(size);
}

}  // namespace

void register_view_copies(RuleTable& table) {
  for (const char* view : {"as_strided",
                           "expand",
                           "permute",
                           "squeeze",
                           "squeeze.dim",
                           "squeeze.dims",
                           "t",
                           "transpose.int",
                           "unsqueeze",
                           "view_as_real",
                           "view_as_complex",
                           "split.Tensor",
                           "split_with_sizes",
                           "unbind.int",
                           "unfold",
                           "_reshape_alias",
                           "narrow",
                           "slice.Tensor",
                           "select.int",
                           "view.dtype"})
    add_copied_view(view);
  add_composition("view_copy", &view_copy);
  // The last dim of the real tensor holds the real and the imaginary part.
  table.add("aten::view_as_real", Rule("…->…_").linear().sampled(false));
  table.add("aten::view_as_complex", Rule("…_->…").linear().sampled(false));
}

}  // namespace shardwise
