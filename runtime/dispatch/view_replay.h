// runtime/dispatch/view_replay.h: makes autograd find a view's part of its base by calling the view's operators again.
//
// After a write to a view, autograd must find the view's part of the base's gradient. It uses either as_strided on global strides, which
// does not know where elements are, or the view's operators. Distributed tensors need the latter.
//
// In-place operators that change a tensor's shape (t_) are among a view's operators from then on: become(). If a base changes its own shape, its views
// restore the shape that it had for them before they call their operators: they compare sizes and strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace shardwise {

/// During its lifetime, views made on this thread remember the operators that made them.
class ViewReplay {
 public:
  ViewReplay();
  ~ViewReplay();

  /// Call this for a new view of `base`. Then the view finds its part of the gradient of `base` also after `base` has changed its shape in place.
  static void keep_shape(const at::Tensor& base, const at::Tensor& view);

 private:
  bool outer_;
};

/// Gives `self` the shape and memory of `changed`, as in-place operators do. `change` gives the same view of a tensor that is as `self` was.
void become(const at::Tensor& self, const at::Tensor& changed, std::function<at::Tensor(const at::Tensor&)> change);

/// Makes every view of a distributed tensor remember its operator. Called once, when aten's other kernels are registered.
void register_view_replay();

}  // namespace shardwise
