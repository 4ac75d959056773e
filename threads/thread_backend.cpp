#include "threads/thread_backend.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <exception>

namespace shardwise {
namespace {

constexpr uint8_t kGarbage = 0xFB;  // in every byte: a large negative number in any dtype

void fill_with_garbage(const at::Tensor& tensor) { bytes_of(tensor).fill_(kGarbage); }

/// An input, and a copy of its values at the launch.
struct Input {
  at::Tensor tensor, copy;
};

std::vector<Input> inputs_of(const std::vector<at::Tensor>& tensors) {
  return c10::fmap(tensors, [&](const at::Tensor& tensor) { return Input{tensor, tensor.clone()}; });
}

class LaunchedWork final : public c10d::Work {
 public:
  /// `write` fills the outputs, which hold garbage until then.
  LaunchedWork(std::shared_ptr<Communicator> communicator, int64_t member, LaunchPtr launch, std::vector<Input> inputs,
               std::vector<at::Tensor> outputs, std::function<void(const Launch&)> write)
      : communicator_(std::move(communicator)),
        member_(member),
        launch_(std::move(launch)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        write_(std::move(write)) {}

  ~LaunchedWork() override {
    if (!was_waited_for_ && std::uncaught_exceptions() == 0)
      communicator_->program().note_dropped(rank(), describe(*launch_));
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (std::exchange(was_waited_for_, true)) return true;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    communicator_->wait(member_, launch_, timeout);
    for (const at::Tensor& output : outputs_)
      check_untouched(bytes_of(output).eq(kGarbage).all().item<bool>(), "an output");
    for (const auto& [tensor, copy] : inputs_)
      if (!is_output_too(tensor)) check_untouched(bytes_of(tensor).equal(bytes_of(copy)), "an input");
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

struct FinishedWork : c10d::Work {
  FinishedWork() { finish(); }
};

/// A receive of a rank that is not strict.
class ReceiveWork final : public c10d::Work {
 public:
  ReceiveWork(std::shared_ptr<Communicator> communicator, Mailbox::Box box, at::Tensor to)
      : communicator_(std::move(communicator)),
        box_(box),
        to_(std::move(to)),
        letter_(communicator_->mailbox().expect(box)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    if (!letter_) return true;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    communicator_->mailbox().receive(box_, std::exchange(letter_, nullptr), to_, timeout);
    finish();
    return true;
  }
  int sourceRank() const override { return static_cast<int>(box_.from); }

 private:
  std::shared_ptr<Communicator> communicator_;
  Mailbox::Box box_;
  at::Tensor to_;
  Mailbox::LetterPtr letter_;  // null after the wait
};

}  // namespace

ThreadBackend::ThreadBackend(int64_t index, std::vector<int64_t> ranks, std::shared_ptr<Communicators> communicators)
    : Backend(static_cast<int>(index), static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      communicators_(std::move(communicators)),
      is_strict_(communicators_->program().is_strict()) {}

void ThreadBackend::check(const std::string& op, const at::Tensor& tensor) const {
  check_contiguous(op.c_str(), tensor);
  SW_CHECK_VALUE(tensor.is_cpu(),
                 "[{}] got a tensor on {}, but the backend of ranks {} serves cpu tensors. Move it there first.", op,
                 tensor.device().str(), ranks_);
}

ThreadBackend::WorkPtr ThreadBackend::run(ThreadCall call, std::chrono::milliseconds timeout) {
  SW_CHECK_VALUE(!is_grouping_, "[{}] cannot be grouped with sends and receives. Call endCoalescing() first.",
                 call.offer.op);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Input> inputs = inputs_of(call.offer.tensors);
  for (size_t i = 0; i < inputs.size(); ++i) call.offer.tensors[i] = inputs[i].copy;
  if (is_strict_) {
    for (const Input& input : inputs) check(call.offer.op, input.tensor);
    for (const at::Tensor& output : call.outputs) check(call.offer.op, output);
    for (const at::Tensor& output : call.outputs) fill_with_garbage(output);
  }
  const auto launch = std::make_shared<Launch>();
  launch->offer = std::move(call.offer);
  const auto communicator = communicators_->of(ranks_);
  communicator->launch(rank_, launch);
  ++n_collectives_;
  const auto write = [read = std::move(call.read)](const Launch& launch) { read(*launch.offers); };
  if (is_strict_)
    return c10::make_intrusive<LaunchedWork>(communicator, rank_, launch, std::move(inputs), std::move(call.outputs),
                                             write);
  communicator->wait(rank_, launch, timeout);
  write(*launch);
  return c10::make_intrusive<FinishedWork>();
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto call = all_reduce_call(tensors, options.reduceOp);
  SW_CHECK_TYPE(traits_of(*this).reduces(options.reduceOp, tensors[0].scalar_type()),
                "[all_reduce] NCCL has no {}. Reduce in another dtype or with another operator.", call.offer.detail);
  return run(std::move(call));
}
ThreadBackend::WorkPtr ThreadBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(broadcast_call(tensors, options.rootRank, rank_));
}
ThreadBackend::WorkPtr ThreadBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return run(all_gather_call(output, input, size_), options.timeout);
}
ThreadBackend::WorkPtr ThreadBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& receive_splits,
                                                    std::vector<int64_t>& send_splits, const c10d::AllToAllOptions&) {
  return run(all_to_all_call(output, input, receive_splits, send_splits, rank_, size_));
}

ThreadBackend::WorkPtr ThreadBackend::start(const std::shared_ptr<Communicator>& communicator, int64_t member,
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
  return c10::make_intrusive<LaunchedWork>(communicator, member, launch, std::move(inputs), outputs, write);
}

ThreadBackend::WorkPtr ThreadBackend::add(const char* op, Tensors& tensors, int peer, bool is_send) {
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

ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  check_other_member("send", to, rank_, size_);
  if (is_strict_) return add("send", tensors, to, true);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  communicators_->of(ranks_)->mailbox().send({rank_, to, tag}, only("send", tensors));
  return c10::make_intrusive<FinishedWork>();
}
ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  check_other_member("receive", from, rank_, size_);
  if (is_strict_) return add("receive", tensors, from, false);
  return c10::make_intrusive<ReceiveWork>(communicators_->of(ranks_), Mailbox::Box{from, rank_, tag},
                                          only("receive", tensors));
}

ThreadBackend::WorkPtr ThreadBackend::endCoalescing() {
  is_grouping_ = false;
  const auto ends = std::exchange(grouped_, {});
  return ends.empty() ? nullptr : start(communicators_->of(ranks_), rank_, ends);
}

}  // namespace shardwise
