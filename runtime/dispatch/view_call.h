// runtime/dispatch/view_call.h: calls of view operators that can be made again, on another tensor.
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/stack.h>

#include <memory>
#include <vector>

namespace shardwise {

/// True if operators on `tensor` go to a tracer first.
inline bool is_traced(const DTensorImpl& tensor) { return tensor.key_set().has(c10::DispatchKey::Python); }

/// One result of a call of a view operator. Holds the call's arguments, but not the tensor that was viewed.
class ViewCall {
 public:
  /// `args`: the arguments of the call of `op`, the viewed tensor included; `output`: the index of the view among its results.
  ViewCall(const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t output);

  /// The same view of `source`, plain or distributed. Undefined if it depends on sizes of other tensors.
  at::Tensor of(const at::Tensor& source) const;
  const OpInfo& op() const { return op_; }
  /// The argument of `args` that the operator views.
  static const at::Tensor& source_in(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

 private:
  const OpInfo& op_;
  torch::jit::Stack args_;  // without the source
  size_t output_;
  SymbolicArgument symbols_;  // in terms of source_sizes_
  std::vector<c10::SymInt> source_sizes_;
};

/// The calls that made a view, from the first to the last. Tensors of a traced program have them: a compiled program that returns a view of its input
/// makes the view from the input again, because the graph cannot give its result a history. Copies of a tensor share the path.
struct ViewPath final : c10::BackendMeta {
  struct Step {
    SpecPtr source;                      // the layout of the tensor that is viewed
    std::vector<int64_t> symbolic_dims;  // whose sizes may be others when the program runs
    std::shared_ptr<const ViewCall> call;
  };
  std::vector<Step> steps;
};
using ViewPathPtr = c10::intrusive_ptr<ViewPath>;

/// The path of a view of a traced program, or of its result; null for all other tensors.
ViewPathPtr path_of(const DTensorImpl& view);
void set_path(DTensorImpl& view, const ViewPathPtr& path);

/// Call this for a new view that operator `op` made of `source` in a traced program. Sets the view's path. `args`, `output`: as for ViewCall.
void note_traced_view(const at::Tensor& view, const DTensorImpl& source, const OpInfo& op,
                      c10::ArrayRef<c10::IValue> args, size_t output);

/// Makes a traced tensor appear to share memory with its own views alone. If two results of a program share memory, torch.compile makes them again
/// from a tensor that holds both, and refuses to if they are of a tensor class.
void hide_memory(DTensorImpl& traced);

/// The view of `base` that a compiled program returned as `view`. Moves values if one of the view's calls does.
at::Tensor view_again(const at::Tensor& base, const at::Tensor& view);

}  // namespace shardwise
