#include "tests/support/accelerator/stream_backend.h"

#include "tests/support/accelerator/boxed_call.h"
#include "tests/support/ranks.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace shardwise::accelerator {
namespace {

class StreamWork final : public c10d::Work {
 public:
  StreamWork(const c10::Stream& stream, std::vector<at::Tensor> tensors)
      : device_(stream.device()), end_(kType), tensors_(std::move(tensors)) {
    end_.record(stream);
  }
  bool wait(std::chrono::milliseconds) override {
    end_.block(current_stream(device_));
    tensors_.clear();
    return true;
  }

 private:
  c10::Device device_;
  c10::Event end_;
  std::vector<at::Tensor> tensors_;
};

std::vector<at::Tensor> all_on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(on_host(tensor));
  return result;
}

/// Streams of backends that are gone, by device: each has a thread.
class StreamPool {
 public:
  c10::Stream take(c10::Device device) {
    const std::lock_guard lock(mutex_);
    auto& streams = free_[device.index()];
    if (streams.empty()) return c10::impl::VirtualGuardImpl(kType).getNewStream(device);
    const c10::Stream stream = streams.back();
    streams.pop_back();
    return stream;
  }
  void give_back(c10::Stream stream) {
    const std::lock_guard lock(mutex_);
    free_[stream.device_index()].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<c10::Stream>> free_;
};

StreamPool& stream_pool() {
  static auto* const pool = new StreamPool;
  return *pool;
}

c10::intrusive_ptr<c10d::ProcessGroup> with_stream_backend(const GroupPtr& group) {
  if (!group || !group->process_group) return nullptr;
  using c10d::ProcessGroup;
  auto result = c10::make_intrusive<ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                  static_cast<int>(group->index), static_cast<int>(group->size()));
  result->setBackend(kType, ProcessGroup::BackendType::CUSTOM,
                     c10::make_intrusive<StreamBackend>(group->process_group->getBackend(c10::kCPU)));
  result->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  return result;
}

}  // namespace

StreamBackend::~StreamBackend() {
  if (stream_) stream_pool().give_back(*stream_);
}

StreamBackend::WorkPtr StreamBackend::start(const char* name, const Tensors& inputs, const Tensors& outputs,
                                            std::function<void(Tensors inputs, Tensors outputs)> call) {
  Tensors all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  std::vector<Access> accesses;
  for (const at::Tensor& tensor : all) {
    TORCH_CHECK_VALUE(
        tensor.device().type() == kType && tensor.is_non_overlapping_and_dense() && tensor.device() == all[0].device(),
        "[", name, "] Tensors must be dense and of one device of the accelerator.");
    accesses.push_back(accesses.size() < inputs.size() ? reads(tensor) : writes(tensor));
  }
  const c10::DeviceGuard guard(all.at(0).device());
  if (!stream_) stream_ = stream_pool().take(all[0].device());
  c10::Event begin(kType);
  begin.record(current_stream(all[0].device()));
  begin.block(*stream_);
  launch(name, *stream_, accesses,
         [call = std::move(call), in = all_on_host(inputs), out = all_on_host(outputs)] { call(in, out); });
  return c10::make_intrusive<StreamWork>(*stream_, std::move(all));
}

StreamBackend::WorkPtr StreamBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start("all_reduce", tensors, tensors,
               [over = over_, options](Tensors, Tensors out) { over->allreduce(out, options)->wait(); });
}

StreamBackend::WorkPtr StreamBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start("broadcast", tensors, options.rootRank == rank_ ? Tensors{} : tensors,
               [over = over_, options](Tensors in, Tensors) { over->broadcast(in, options)->wait(); });
}

StreamBackend::WorkPtr StreamBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return start("all_gather", {input}, {output}, [over = over_, options](Tensors in, Tensors out) {
    over->_allgather_base(out[0], in[0], options)->wait();
  });
}

StreamBackend::WorkPtr StreamBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  return start("reduce_scatter", {input}, {output}, [over = over_, options](Tensors in, Tensors out) {
    over->_reduce_scatter_base(out[0], in[0], options)->wait();
  });
}

StreamBackend::WorkPtr StreamBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& receive_splits,
                                                    std::vector<int64_t>& send_splits,
                                                    const c10d::AllToAllOptions& options) {
  return start("all_to_all", {input}, {output},
               [over = over_, options, receive_splits, send_splits](Tensors in, Tensors out) mutable {
                 over->alltoall_base(out[0], in[0], receive_splits, send_splits, options)->wait();
               });
}

StreamBackend::WorkPtr StreamBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  constexpr int kTag = 7;
  std::vector<End> ends;
  for (int peer = 0; peer < size_; ++peer) {
    if (inputs.at(peer).numel() > 0) ends.push_back({peer, kTag, true, inputs[peer]});
    if (outputs.at(peer).numel() > 0) ends.push_back({peer, kTag, false, outputs[peer]});
  }
  return start(std::move(ends));
}

StreamBackend::WorkPtr StreamBackend::start(std::vector<End> ends) {
  if (ends.empty()) return nullptr;
  Tensors inputs, outputs;
  for (const End& end : ends) (end.is_send ? inputs : outputs).push_back(end.tensor);
  for (End& end : ends) end.tensor.reset();
  return start("messages", inputs, outputs, [over = over_, ends](Tensors in, Tensors out) {
    std::vector<WorkPtr> works;
    size_t n_sent = 0, n_received = 0;
    for (const End& end : ends) {
      Tensors one{end.is_send ? in[n_sent++] : out[n_received++]};
      works.push_back(end.is_send ? over->send(one, end.peer, end.tag) : over->recv(one, end.peer, end.tag));
    }
    for (const WorkPtr& work : works) work->wait();
  });
}

StreamBackend::WorkPtr StreamBackend::send(Tensors& tensors, int to, int tag) {
  if (!is_grouping_) return start({{to, tag, true, tensors.at(0)}});
  grouped_.push_back({to, tag, true, tensors.at(0)});
  return nullptr;
}

StreamBackend::WorkPtr StreamBackend::recv(Tensors& tensors, int from, int tag) {
  if (!is_grouping_) return start({{from, tag, false, tensors.at(0)}});
  grouped_.push_back({from, tag, false, tensors.at(0)});
  return nullptr;
}

StreamBackend::WorkPtr StreamBackend::endCoalescing() {
  is_grouping_ = false;
  return start(std::exchange(grouped_, {}));
}

void run_rank(World& world, const std::function<void()>& body) {
  const c10::DeviceGuard guard({kType, static_cast<c10::DeviceIndex>(world.rank() % kDevices)});
  const std::shared_ptr<World> threads = World::current();
  const auto make_group = [threads](const std::vector<int64_t>& ranks) {
    return with_stream_backend(threads->group(ranks));
  };
  World::set_thread(
      std::make_shared<World>(world.rank(), world.size(), with_stream_backend(everyone(world)), make_group));
  body();
  c10::impl::VirtualGuardImpl(kType).synchronizeDevice(guard.current_device().index());
  World::set_thread(threads);
}

}  // namespace shardwise::accelerator
