// runtime/dispatch/view_replay.h: how autograd finds a view's part of its base.
//
// When a view is written to, autograd later finds the view's part of the base's gradient: by as_strided on global strides, which
// says nothing of where the elements live, or by calling the view's operators again. Distributed tensors need the second.
#pragma once

namespace shardwise {

/// While it lives, views made on this thread remember the operators that made them.
class ViewReplay {
 public:
  ViewReplay();
  ~ViewReplay();

 private:
  bool outer_;
};

/// Lets every view of a distributed tensor remember its operator. Called once, when aten's other kernels are registered.
void register_view_replay();

}  // namespace shardwise
