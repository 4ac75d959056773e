// runtime/threads/strict_backend.h: a c10d backend whose ranks are threads of one process and which behaves as NCCL does.
//
// For tests: what is an error or a hang over NCCL is an error here that names ranks and calls.
//   SHARDWISE_THREADS=strict build/runtime_test
#pragma once

#include "runtime/threads/communicator.h"
#include "runtime/threads/thread_calls.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// What holds over NCCL holds here:
///   - the first call on a group makes its communicator and returns when every member has called;
///   - all members make the same collectives in the same order: kind, count, dtype, root and reduction;
///   - the calls of one member run one after another, so that a send or receive outside of startCoalescing() and endCoalescing() may keep
///     the other end's from running; tags are not looked at;
///   - a call only starts what it does. Its outputs hold garbage until wait(), and its inputs may not change until then;
///   - tensors are contiguous and of the one kind of device that the backend serves; dtypes and reductions are those of NCCL.
///
/// Throws from wait(): as Communicator::wait; c10::ValueError where an input or output was written to before it.
/// Cost: copies of all inputs.
class StrictBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `ranks`: the group's, global; `index`: this rank's place among them.
  StrictBackend(int64_t index, std::vector<int64_t> ranks, c10::DeviceType device,
                std::shared_ptr<Communicators> communicators);

  const std::string getBackendName() const override { return "threads-strict"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return n_collectives_; }
  bool supportsCoalescing() const override { return true; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive_splits,
                        std::vector<int64_t>& send_splits, const c10d::AllToAllOptions& options) override;
  /// Between startCoalescing() and endCoalescing() both return null.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  void startCoalescing() override;
  /// Null where nothing was sent or received since startCoalescing().
  WorkPtr endCoalescing() override;

 private:
  struct End {
    int64_t peer;
    bool is_send;
    at::Tensor tensor;
  };

  void check(const char* op, const at::Tensor& tensor) const;
  WorkPtr start(ThreadCall call);
  WorkPtr start(const std::shared_ptr<Communicator>& communicator, int64_t member, const std::vector<End>& ends);
  WorkPtr add(const char* op, Tensors& tensors, int peer, bool is_send);

  std::vector<int64_t> ranks_;
  c10::DeviceType device_;
  std::shared_ptr<Communicators> communicators_;
  uint64_t n_collectives_ = 0;
  bool is_grouping_ = false;
  std::vector<End> grouped_;
};

}  // namespace shardwise
