// tests/support/accelerator/stream_backend.h: a c10d backend for the accelerator that orders its work by streams, as NCCL's does.
#pragma once

#include "runtime/comm/world.h"

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <optional>
#include <vector>

namespace shardwise::accelerator {

/// A call starts when what is on the tensors' current stream is over, runs on the backend's own stream, and the host goes on. Its Work's
/// wait() lets the stream that is current then wait, and keeps the tensors until then. The values travel over another backend, of the
/// CPU's tensors, which the stream's thread waits for.
class StreamBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  explicit StreamBackend(c10::intrusive_ptr<c10d::Backend> over)
      : Backend(over->getRank(), over->getSize()), over_(std::move(over)) {}
  ~StreamBackend() override;

  const std::string getBackendName() const override { return "accelerator"; }
  void setSequenceNumberForGroup() override {}
  bool supportsCoalescing() const override { return true; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive_splits,
                        std::vector<int64_t>& send_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Between startCoalescing() and endCoalescing() both return null.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  void startCoalescing() override { is_grouping_ = true; }
  WorkPtr endCoalescing() override;

 private:
  struct End {
    int peer, tag;
    bool is_send;
    at::Tensor tensor;
  };

  /// Launches `call`, which gets the tensors as the CPU's: inputs, then outputs.
  WorkPtr start(const char* name, const Tensors& inputs, const Tensors& outputs,
                std::function<void(Tensors inputs, Tensors outputs)> call);
  WorkPtr start(std::vector<End> ends);

  c10::intrusive_ptr<c10d::Backend> over_;
  std::optional<c10::Stream> stream_;
  bool is_grouping_ = false;
  std::vector<End> grouped_;
};

/// Runs `body` on rank `world` of a program of threads as a program on accelerators does: device `rank` is current, the groups have
/// this backend alone. Waits for the device after it.
void run_rank(World& world, const std::function<void()>& body);

}  // namespace shardwise::accelerator
