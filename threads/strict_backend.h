// threads/strict_backend.h: a c10d backend that behaves like NCCL, for ranks that are threads of one process.
//
// For tests: an error or hang over NCCL becomes an error that names ranks and calls.
//   SHARDWISE_THREADS=strict build/runtime_test
#pragma once

#include "threads/communicator.h"
#include "threads/thread_calls.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// Follows the rules of NCCL:
///   - the first call on a group creates its communicator and returns when every member has called;
///   - all members make the same collectives in the same order, with equal kind, count, dtype, root and reduction;
///   - the calls of one member run one after another, so a send or receive outside of startCoalescing() and endCoalescing() may keep the
///     other end's from running; tags are ignored;
///   - a call only starts the work: until wait(), its outputs hold garbage and its inputs must not change;
///   - tensors are contiguous and on the kind of device that the backend serves; dtypes and reductions are those of NCCL.
///
/// Throws from wait(): as Communicator::wait; c10::ValueError if an input or output was written to before the wait.
/// Cost: copies of all inputs.
class StrictBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `ranks`: the group's global ranks; `index`: this rank's index among them.
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
  /// Both return null between startCoalescing() and endCoalescing().
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  void startCoalescing() override;
  /// Null if nothing was sent or received since startCoalescing().
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
