// runtime/dispatch/view_replay.h: makes autograd find a view's part of its base by calling the view's operators again.
//
// After a write to a view, autograd must find the view's part of the base's gradient. It uses either as_strided on global strides, which
// does not know where elements are, or the view's operators. Distributed tensors need the latter.
#pragma once

namespace shardwise {

/// During its lifetime, views made on this thread remember the operators that made them.
class ViewReplay {
 public:
  ViewReplay();
  ~ViewReplay();

 private:
  bool outer_;
};

/// Makes every view of a distributed tensor remember its operator. Called once, when aten's other kernels are registered.
void register_view_replay();

}  // namespace shardwise
