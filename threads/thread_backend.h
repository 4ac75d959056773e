// threads/thread_backend.h: a c10d backend whose ranks are threads of one process.
#pragma once

#include "threads/communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// The collectives that Shardwise needs, over shared memory. Sums are computed in rank order, so all ranks get the same bits. Each call except
/// recv returns a finished Work.
///
/// Strict ranks (`SHARDWISE_THREADS=strict build/runtime_test`) follow the rules of NCCL instead, so that an error or hang over NCCL becomes an
/// error that names ranks and calls:
///   - the first call on a group creates its communicator and returns when every member has called;
///   - all members make the same collectives in the same order, with equal kind, count, dtype, root and reduction;
///   - the calls of one member run one after another, so a send or receive outside of startCoalescing() and endCoalescing() may keep the
///     other end's from running; tags are ignored;
///   - a call only starts the work: until wait(), its outputs hold garbage and its inputs must not change;
///   - tensors are contiguous and on the CPU; dtypes and reductions are those of NCCL.
///
/// Throws, from strict ranks' wait() and from other ranks' calls: c10::ValueError on all ranks if their calls or sizes differ (for send and recv: on the receiver), or an
/// input or output was written to before the wait; c10::DistBackendError if a rank is gone. Cost: copies of all inputs.
class ThreadBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `ranks`: the group's global ranks; `index`: this rank's index among them.
  ThreadBackend(int64_t index, std::vector<int64_t> ranks, std::shared_ptr<Communicators> communicators);

  const std::string getBackendName() const override { return is_strict_ ? "threads-strict" : "threads"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return n_collectives_; }
  bool supportsCoalescing() const override { return is_strict_; }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive_splits,
                        std::vector<int64_t>& send_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  /// The Work's wait() waits for the message and writes it; without wait() nothing is written.
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  /// For strict ranks. In between, send() and recv() return null.
  void startCoalescing() override { is_grouping_ = true; }
  /// Null if nothing was sent or received since startCoalescing().
  WorkPtr endCoalescing() override;

 private:
  struct End {
    int64_t peer;
    bool is_send;
    at::Tensor tensor;
  };

  void check(const std::string& op, const at::Tensor& tensor) const;
  WorkPtr run(ThreadCall call, std::chrono::milliseconds timeout = c10d::kUnsetTimeout);
  WorkPtr start(const std::shared_ptr<Communicator>& communicator, int64_t member, const std::vector<End>& ends);
  WorkPtr add(const char* op, Tensors& tensors, int peer, bool is_send);

  std::vector<int64_t> ranks_;
  std::shared_ptr<Communicators> communicators_;
  bool is_strict_;
  uint64_t n_collectives_ = 0;
  bool is_grouping_ = false;
  std::vector<End> grouped_;
};

}  // namespace shardwise
