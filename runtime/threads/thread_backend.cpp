#include "runtime/threads/thread_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <numeric>

namespace shardwise {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

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
  Mailbox::LetterPtr letter_;  // null once waited for
};

const at::Tensor& only(const char* op, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, fmt::format("[{}] got {} tensors. Pass one.", op, tensors.size()));
  return tensors[0];
}

std::string count_and_dtype(const at::Tensor& tensor) {
  return fmt::format("{} {}", tensor.numel(), at::toString(tensor.scalar_type()));
}

const char* name_of(RedOp op) {
  switch (op) {
    case RedOp::SUM:
      return "sum of ";
    case RedOp::AVG:
      return "avg of ";
    case RedOp::PRODUCT:
      return "product of ";
    case RedOp::MIN:
      return "min of ";
    case RedOp::MAX:
      return "max of ";
    case RedOp::BAND:
      return "bitwise and of ";
    case RedOp::BOR:
      return "bitwise or of ";
    case RedOp::BXOR:
      return "bitwise xor of ";
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, "[threads] ranks that are threads cannot reduce with a pre-multiplied sum. Multiply, then sum.");
  }
}

void accumulate(at::Tensor& total, const at::Tensor& next, RedOp op) {
  switch (op) {
    case RedOp::PRODUCT:
      total.mul_(next);
      return;
    case RedOp::MIN:
      at::minimum_out(total, total, next);
      return;
    case RedOp::MAX:
      at::maximum_out(total, total, next);
      return;
    case RedOp::BAND:
      total.bitwise_and_(next);
      return;
    case RedOp::BOR:
      total.bitwise_or_(next);
      return;
    case RedOp::BXOR:
      total.bitwise_xor_(next);
      return;
    default:
      total.add_(next);
  }
}

/// Reduces `part(tensor)` of every member's first tensor, in group order.
template <class Part>
at::Tensor combine(const Offers& offers, RedOp op, const Part& part) {
  at::Tensor total = part(offers[0].tensors[0]).clone();
  for (size_t i = 1; i < offers.size(); ++i) accumulate(total, part(offers[i].tensors[0]), op);
  return op == RedOp::AVG ? total.div_(static_cast<int64_t>(offers.size())) : total;
}

at::Tensor whole(const at::Tensor& tensor) { return tensor; }

/// The elements per member that `splits` of dim 0 stand for; no splits mean even ones.
std::vector<int64_t> element_counts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int64_t n_members) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.size(0) % n_members == 0,
                      fmt::format("[all_to_all] {} rows do not split evenly among {} ranks. Give splits.",
                                  tensor.size(0), n_members));
    return std::vector<int64_t>(n_members, tensor.numel() / n_members);
  }
  const bool is_right = static_cast<int64_t>(splits.size()) == n_members &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.size(0);
  TORCH_CHECK_VALUE(is_right,
                    fmt::format("[all_to_all] the splits do not add up to the {} rows of the tensor for {} ranks.",
                                tensor.size(0), n_members));
  std::vector<int64_t> counts = splits;
  for (int64_t& count : counts) count = tensor.size(0) == 0 ? 0 : count * (tensor.numel() / tensor.size(0));
  return counts;
}

void check_counts(const Offers& offers) {
  for (size_t from = 0; from < offers.size(); ++from)
    for (size_t to = 0; to < offers.size(); ++to)
      TORCH_CHECK_VALUE(
          offers[from].send_counts[to] == offers[to].receive_counts[from],
          fmt::format("[all_to_all] member {} sends {} elements to member {}, which expects {}. Make the splits agree.",
                      from, offers[from].send_counts[to], to, offers[to].receive_counts[from]));
}

void check_outputs(const char* op, size_t n_outputs, int64_t size) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(n_outputs) == size,
                    fmt::format("[{}] got {} tensors for {} ranks. Pass one per rank.", op, n_outputs, size));
}

void check_other(const char* op, int other, int own, int size) {
  TORCH_CHECK_VALUE(
      other >= 0 && other < size && other != own,
      fmt::format("[{}] member {} names member {} of {}. Name another one in [0, {}).", op, own, other, size, size));
}

void check_parts(const char* op, const at::Tensor& all, const at::Tensor& part, int64_t size) {
  TORCH_CHECK_VALUE(all.numel() == part.numel() * size,
                    fmt::format("[{}] {} elements are not {} ranks' parts of {}. Pass tensors that fit.", op,
                                all.numel(), size, part.numel()));
}

}  // namespace

ThreadBackend::ThreadBackend(int64_t index, int64_t size, std::shared_ptr<Rendezvous> rendezvous,
                             std::shared_ptr<Mailbox> mailbox)
    : Backend(static_cast<int>(index), static_cast<int>(size)),
      rendezvous_(std::move(rendezvous)),
      mailbox_(std::move(mailbox)) {}

ThreadBackend::WorkPtr ThreadBackend::meet(Offer offer, const std::function<void(const Offers&)>& read,
                                           const std::function<void()>& write) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  rendezvous_->hold(rank_, std::move(offer), read);
  write();
  return c10::make_intrusive<FinishedWork>();
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  const RedOp op = options.reduceOp;
  at::Tensor total;
  return meet(
      {"all_reduce", name_of(op) + count_and_dtype(tensor), {tensor}, {}, {}},
      [&](const Offers& offers) { total = combine(offers, op, whole); }, [&] { tensor.copy_(total); });
}

ThreadBackend::WorkPtr ThreadBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only("reduce", tensors);
  const RedOp op = options.reduceOp;
  const bool is_root = options.rootRank == rank_;
  at::Tensor total = tensor;
  return meet(
      {"reduce", fmt::format("{}{} to {}", name_of(op), count_and_dtype(tensor), options.rootRank), {tensor}, {}, {}},
      [&](const Offers& offers) {
        if (is_root) total = combine(offers, op, whole);
      },
      [&] {
        if (is_root) tensor.copy_(total);
      });
}

ThreadBackend::WorkPtr ThreadBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  return meet({"broadcast", fmt::format("{} from {}", count_and_dtype(tensor), options.rootRank), {tensor}, {}, {}},
              [&](const Offers& offers) {
                if (options.rootRank != rank_) tensor.copy_(offers.at(options.rootRank).tensors[0]);
              });
}

ThreadBackend::WorkPtr ThreadBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions&) {
  const at::Tensor& input = only("all_gather", inputs);
  check_outputs("all_gather", outputs.at(0).size(), size_);
  return meet({"all_gather", count_and_dtype(input), {input}, {}, {}}, [&](const Offers& offers) {
    for (int i = 0; i < size_; ++i) outputs[0][i].copy_(offers[i].tensors[0]);
  });
}

ThreadBackend::WorkPtr ThreadBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions&) {
  check_parts("all_gather", output, input, size_);
  return meet({"all_gather", count_and_dtype(input), {input}, {}, {}}, [&](const Offers& offers) {
    const at::Tensor rows = output.view({size_, -1});
    for (int i = 0; i < size_; ++i) rows[i].copy_(offers[i].tensors[0].view(-1));
  });
}

ThreadBackend::WorkPtr ThreadBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const bool is_root = options.rootRank == rank_;
  if (is_root) check_outputs("gather", outputs.at(0).size(), size_);
  return meet({"gather", fmt::format("{} to {}", count_and_dtype(input), options.rootRank), {input}, {}, {}},
              [&](const Offers& offers) {
                for (int i = 0; is_root && i < size_; ++i) outputs[0][i].copy_(offers[i].tensors[0]);
              });
}

ThreadBackend::WorkPtr ThreadBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  const at::Tensor& output = only("scatter", outputs);
  const bool is_root = options.rootRank == rank_;
  if (is_root) check_outputs("scatter", inputs.at(0).size(), size_);
  return meet({"scatter",
               fmt::format("{} from {}", count_and_dtype(output), options.rootRank),
               is_root ? inputs[0] : Tensors{},
               {},
               {}},
              [&](const Offers& offers) { output.copy_(offers.at(options.rootRank).tensors[rank_]); });
}

ThreadBackend::WorkPtr ThreadBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  check_parts("reduce_scatter", input, output, size_);
  const RedOp op = options.reduceOp;
  const auto own_part = [&](const at::Tensor& tensor) { return tensor.view({size_, -1})[rank_]; };
  return meet({"reduce_scatter", name_of(op) + count_and_dtype(input), {input}, {}, {}},
              [&](const Offers& offers) { output.view(-1).copy_(combine(offers, op, own_part)); });
}

ThreadBackend::WorkPtr ThreadBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& receive_splits,
                                                    std::vector<int64_t>& send_splits, const c10d::AllToAllOptions&) {
  Offer offer{"all_to_all",
              at::toString(input.scalar_type()),
              {input},
              element_counts(input, send_splits, size_),
              element_counts(output, receive_splits, size_)};
  return meet(std::move(offer), [&](const Offers& offers) {
    check_counts(offers);
    int64_t begin = 0;
    for (const Offer& from : offers) {
      const int64_t count = from.send_counts[rank_];
      const int64_t from_begin =
          std::accumulate(from.send_counts.begin(), from.send_counts.begin() + rank_, int64_t{0});
      output.view(-1).narrow(0, begin, count).copy_(from.tensors[0].view(-1).narrow(0, from_begin, count));
      begin += count;
    }
  });
}

ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_other("send", to, rank_, size_);
  mailbox_->send({rank_, to, tag}, only("send", tensors));
  return c10::make_intrusive<FinishedWork>();
}

ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  check_other("recv", from, rank_, size_);
  return c10::make_intrusive<ReceiveWork>(mailbox_, Mailbox::Box{from, rank_, tag}, only("recv", tensors));
}

ThreadBackend::WorkPtr ThreadBackend::barrier(const c10d::BarrierOptions&) {
  return meet({"barrier", "of all", {}, {}, {}}, [](const Offers&) {});
}

}  // namespace shardwise
