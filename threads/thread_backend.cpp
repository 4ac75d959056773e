#include "threads/thread_backend.h"

#include "threads/thread_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace shardwise {
namespace {

struct FinishedWork : c10d::Work {
  FinishedWork() { finish(); }
};

class ReceiveWork : public c10d::Work {
 public:
  ReceiveWork(std::shared_ptr<Mailbox> mailbox, Mailbox::Box box, at::Tensor to)
      : mailbox_(std::move(mailbox)), box_(box), to_(std::move(to)), letter_(mailbox_->expect(box)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (!letter_) return true;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    mailbox_->receive(box_, std::exchange(letter_, nullptr), to_, timeout);
    finish();
    return true;
  }
  int sourceRank() const override { return static_cast<int>(box_.from); }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  Mailbox::Box box_;
  at::Tensor to_;
  Mailbox::LetterPtr letter_;  // null after the wait
};

}  // namespace

ThreadBackend::ThreadBackend(int64_t index, int64_t size, std::shared_ptr<Rendezvous> rendezvous,
                             std::shared_ptr<Mailbox> mailbox)
    : Backend(static_cast<int>(index), static_cast<int>(size)),
      rendezvous_(std::move(rendezvous)),
      mailbox_(std::move(mailbox)) {}

ThreadBackend::WorkPtr ThreadBackend::run(ThreadCall call, std::chrono::milliseconds timeout) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  rendezvous_->hold(rank_, std::move(call.offer), call.read, timeout);
  call.write();
  return c10::make_intrusive<FinishedWork>();
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run(all_reduce_call(tensors, options.reduceOp));
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

ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_other_member("send", to, rank_, size_);
  mailbox_->send({rank_, to, tag}, only("send", tensors));
  return c10::make_intrusive<FinishedWork>();
}

ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  check_other_member("recv", from, rank_, size_);
  return c10::make_intrusive<ReceiveWork>(mailbox_, Mailbox::Box{from, rank_, tag}, only("recv", tensors));
}

}  // namespace shardwise
