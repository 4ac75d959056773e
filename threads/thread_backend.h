// threads/thread_backend.h: a c10d backend whose ranks are threads of one process.
#pragma once

#include "threads/mailbox.h"
#include "threads/rendezvous.h"
#include "threads/thread_calls.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// The collectives that Shardwise needs, synchronous and over shared memory: each call except recv returns a finished Work. Sums are
/// computed in rank order, so all ranks get the same bits. Cost: every rank reads every other rank's tensor; send copies its own.
///
/// Throws: c10::ValueError on all ranks if their calls or sizes differ (for send and recv: on the receiver); c10::DistBackendError if a
/// rank is gone.
class ThreadBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  ThreadBackend(int64_t index, int64_t size, std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<Mailbox> mailbox);

  const std::string getBackendName() const override { return "threads"; }
  void setSequenceNumberForGroup() override {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive_splits,
                        std::vector<int64_t>& send_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  /// The Work's wait() waits for the message and writes it; without wait() nothing is written.
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  WorkPtr run(ThreadCall call, std::chrono::milliseconds timeout = c10d::kUnsetTimeout);

  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace shardwise
