#include "threads/strict_backend.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

namespace shardwise {
namespace {

constexpr uint8_t kGarbage = 0xFB;  // in every byte: a large negative number in any dtype

void fill_with_garbage(const at::Tensor& tensor) { bytes_of(tensor).fill_(kGarbage); }

bool is_garbage(const at::Tensor& tensor) { return bytes_of(tensor).eq(kGarbage).all().item<bool>(); }

bool are_same_bytes(const at::Tensor& a, const at::Tensor& b) { return bytes_of(a).equal(bytes_of(b)); }

/// An input, and a copy of its values at the launch.
struct Input {
  at::Tensor tensor, copy;
};

std::vector<Input> inputs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Input> inputs;
  for (const at::Tensor& tensor : tensors) inputs.push_back({tensor, tensor.clone()});
  return inputs;
}

class StrictWork final : public c10d::Work {
 public:
  /// `write` fills the outputs, which hold garbage until then.
  StrictWork(std::shared_ptr<Communicator> communicator, int64_t member, LaunchPtr launch, std::vector<Input> inputs,
             std::vector<at::Tensor> outputs, std::function<void(const Launch&)> write)
      : communicator_(std::move(communicator)),
        member_(member),
        launch_(std::move(launch)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        write_(std::move(write)) {}

  ~StrictWork() override {
    if (!was_waited_for_ && std::uncaught_exceptions() == 0)
      communicator_->program().note_dropped(rank(), describe(*launch_));
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (std::exchange(was_waited_for_, true)) return true;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    communicator_->wait(member_, launch_, timeout);
    for (const at::Tensor& output : outputs_) check_untouched(is_garbage(output), "an output");
    for (const auto& [tensor, copy] : inputs_)
      if (!is_output_too(tensor)) check_untouched(are_same_bytes(tensor, copy), "an input");
    write_(*launch_);
    finish();
    return true;
  }

 private:
  int64_t rank() const { return communicator_->ranks()[member_]; }

  bool is_output_too(const at::Tensor& input) const {
    return std::ranges::any_of(outputs_, [&](const at::Tensor& output) { return output.is_alias_of(input); });
  }

  void check_untouched(bool is_untouched, const char* what) const {
    SW_CHECK_VALUE(is_untouched,
                   "[{}] {} of rank {} was written to between the call and its wait(): {}. Write after wait().",
                   launch_->offer.op, what, rank(), describe(*launch_));
  }

  std::shared_ptr<Communicator> communicator_;
  int64_t member_;
  LaunchPtr launch_;
  std::vector<Input> inputs_;
  std::vector<at::Tensor> outputs_;
  std::function<void(const Launch&)> write_;
  bool was_waited_for_ = false;
};

}  // namespace

StrictBackend::StrictBackend(int64_t index, std::vector<int64_t> ranks, c10::DeviceType device,
                             std::shared_ptr<Communicators> communicators)
    : Backend(static_cast<int>(index), static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      device_(device),
      communicators_(std::move(communicators)) {}

void StrictBackend::check(const char* op, const at::Tensor& tensor) const {
  check_contiguous(op, tensor);
  SW_CHECK_VALUE(tensor.device().type() == device_,
                 "[{}] got a tensor on {}, but the backend of ranks {} serves {} tensors. Move it there first.", op,
                 tensor.device().str(), ranks_, c10::DeviceTypeName(device_, /*lower_case=*/true));
}

StrictBackend::WorkPtr StrictBackend::start(ThreadCall call) {
  SW_CHECK_VALUE(!is_grouping_, "[{}] cannot be grouped with sends and receives. Call endCoalescing() first.",
                 call.offer.op);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Input> inputs = inputs_of(call.offer.tensors);
  for (size_t i = 0; i < inputs.size(); ++i) call.offer.tensors[i] = inputs[i].copy;
  for (const at::Tensor& output : call.outputs) fill_with_garbage(output);
  const auto launch = std::make_shared<Launch>();
  launch->offer = std::move(call.offer);
  const auto communicator = communicators_->of(ranks_);
  communicator->launch(rank_, launch);
  ++n_collectives_;
  const auto write = [read = std::move(call.read), write = std::move(call.write)](const Launch& launch) {
    read(*launch.offers);
    write();
  };
  return c10::make_intrusive<StrictWork>(communicator, rank_, launch, std::move(inputs), std::move(call.outputs),
                                         write);
}

StrictBackend::WorkPtr StrictBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  check("all_reduce", tensor);
  auto call = all_reduce_call(tensors, options.reduceOp);
  SW_CHECK_TYPE(traits_of(*this).reduces(options.reduceOp, tensor.scalar_type()),
                "[all_reduce] NCCL has no {}. Reduce in another dtype or with another operator.", call.offer.detail);
  return start(std::move(call));
}

StrictBackend::WorkPtr StrictBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check("broadcast", only("broadcast", tensors));
  return start(broadcast_call(tensors, options.rootRank, rank_));
}

StrictBackend::WorkPtr StrictBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions&) {
  for (const at::Tensor& tensor : {output, input}) check("all_gather", tensor);
  return start(all_gather_call(output, input, size_));
}

StrictBackend::WorkPtr StrictBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& receive_splits,
                                                    std::vector<int64_t>& send_splits, const c10d::AllToAllOptions&) {
  for (const at::Tensor& tensor : {output, input}) check("all_to_all", tensor);
  return start(all_to_all_call(output, input, receive_splits, send_splits, rank_, size_));
}

StrictBackend::WorkPtr StrictBackend::start(const std::shared_ptr<Communicator>& communicator, int64_t member,
                                            const std::vector<End>& ends) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto launch = std::make_shared<Launch>();
  launch->offer.op = "send";
  std::vector<Input> inputs;
  std::vector<at::Tensor> outputs;
  for (const auto& [peer, is_send, tensor] : ends) {
    MessageEnd& end = launch->ends.emplace_back(MessageEnd{peer, is_send, {}, describe(tensor)});
    if (is_send) inputs.push_back({tensor, end.tensor = tensor.clone()});
  }
  for (const auto& [peer, is_send, tensor] : ends) {
    if (is_send) continue;
    launch->offer.op = "receive";
    outputs.push_back(tensor);
    fill_with_garbage(tensor);
  }
  communicator->launch(member, launch);
  const auto write = [outputs, member, ranks = communicator->ranks()](const Launch& launch) {
    auto output = outputs.begin();
    for (const MessageEnd& end : launch.ends)
      if (!end.is_send) receive_into(*output++, end.tensor, ranks[end.peer], ranks[member]);
  };
  return c10::make_intrusive<StrictWork>(communicator, member, launch, std::move(inputs), outputs, write);
}

StrictBackend::WorkPtr StrictBackend::add(const char* op, Tensors& tensors, int peer, bool is_send) {
  check_other_member(op, peer, rank_, size_);
  const at::Tensor& tensor = only(op, tensors);
  check(op, tensor);
  if (is_grouping_) {
    grouped_.push_back({peer, is_send, tensor});
    return nullptr;
  }
  const bool is_low = rank_ < peer;
  const auto pair =
      is_low ? communicators_->of_pair(ranks_, rank_, peer) : communicators_->of_pair(ranks_, peer, rank_);
  return start(pair, is_low ? 0 : 1, {{is_low ? 1 : 0, is_send, tensor}});
}

StrictBackend::WorkPtr StrictBackend::send(Tensors& tensors, int to, int) { return add("send", tensors, to, true); }
StrictBackend::WorkPtr StrictBackend::recv(Tensors& tensors, int from, int) {
  return add("receive", tensors, from, false);
}

void StrictBackend::startCoalescing() { is_grouping_ = true; }

StrictBackend::WorkPtr StrictBackend::endCoalescing() {
  is_grouping_ = false;
  const auto ends = std::exchange(grouped_, {});
  return ends.empty() ? nullptr : start(communicators_->of(ranks_), rank_, ends);
}

}  // namespace shardwise
