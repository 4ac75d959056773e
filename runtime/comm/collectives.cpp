#include "runtime/comm/collectives.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/message_thread.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <numeric>

namespace shardwise {
namespace {

void check_splits(const Group& group, const char* which, const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  const bool is_right = static_cast<int64_t>(splits.size()) == group.size() && tensor.dim() == 1 &&
                        std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; }) &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.numel();
  SW_CHECK_VALUE(is_right,
                 "[all_to_all] {} splits {} do not split a tensor of shape {} among {} ranks. Give one count per rank "
                 "that add up to the elements of a flat tensor.",
                 which, splits, tensor.sizes(), group.size());
}

void check_policy(const char* collective) {
  check_comm_policy([=] { return fmt::format("sends an {}", collective); });
}

}  // namespace

void all_to_all(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits) {
  check_contiguous("all_to_all", output);
  check_contiguous("all_to_all", input);
  check_splits(group, "receive", output, receive_splits);
  check_splits(group, "send", input, send_splits);
  SW_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "[all_to_all] sends {} but receives {}. Use one dtype.",
                 at::toString(input.scalar_type()), at::toString(output.scalar_type()));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (group.size() == 1) {
    output.copy_(input);
    return;
  }
  check_policy("all_to_all");
  const int64_t element_bytes = input.element_size();
  const auto in_bytes = [=](std::vector<int64_t> splits) {
    for (int64_t& split : splits) split *= element_bytes;
    return splits;
  };
  std::vector<int64_t> received = in_bytes(receive_splits);  // Gloo moves from these two vectors
  std::vector<int64_t> sent = in_bytes(send_splits);
  at::Tensor to = bytes_of(output);
  at::Tensor from = bytes_of(input);
  const auto backend = backend_of(group, "all_to_all", input.device().type());
  Communication exchanging(group, {.name = "all_to_all",
                                   .dtype = input.scalar_type(),
                                   .bytes_sent = from.numel() - send_splits[group.index] * element_bytes,
                                   .bytes_received = to.numel() - receive_splits[group.index] * element_bytes,
                                   .counted_as = "all_to_all"});
  exchanging.run([&] {
    return goes_tagged(*backend) ? exchange_tagged(exchanging, *backend, group, from.split_with_sizes(sent),
                                                   to.split_with_sizes(received))
                                 : TaggedWorks{backend->alltoall_base(to, from, received, sent)};
  });
}

namespace {

/// Two rounds of messages: sends parts to the members that reduce them, and gathers the results.
class PartsReduction {
 public:
  PartsReduction(std::shared_ptr<Communication> communication, c10::intrusive_ptr<c10d::Backend> backend,
                 const Group& group, const ReduceForm& terms, const ReduceForm& result)
      : communication_(std::move(communication)),
        backend_(std::move(backend)),
        group_(group),
        op_(result.op),
        parts_(result.tensor.view(-1).tensor_split(group.size())),
        terms_(terms.tensor.view(-1).tensor_split(group.size())),
        rows_(rows_around(group, terms_[group.index])),
        works_(exchange_tagged(*communication_, *backend_, group_, terms_, rows_)) {}

  void finish() {
    wait_for_all(works_);
    reduce_rows(group_.index, rows_, op_, parts_[group_.index]);
    wait_for_all(gather_tagged(*communication_, *backend_, group_, parts_[group_.index], parts_));
  }

 private:
  std::shared_ptr<Communication> communication_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Group group_;  // a copy: the caller's may end before the reduction does
  c10d::ReduceOp::RedOpType op_;
  std::vector<at::Tensor> parts_;  // of the result
  std::vector<at::Tensor> terms_;  // this rank's terms of the parts
  std::vector<at::Tensor> rows_;   // the members' terms of this rank's part
  TaggedWorks works_;
};

class StartedReduction final : public Reduction {
 public:
  StartedReduction(const Group& group, const at::Tensor& terms, const at::Tensor& result, Reduce reduce, WaitsFor waits)
      : n_members_(group.size()),
        index_(group.index),
        result_(result),
        reduce_(reduce),
        terms_(to_reduce_form(terms, reduce)),
        form_(terms_.tensor.is_alias_of(terms) ? to_reduce_form(result, reduce) : terms_),
        communication_(std::make_shared<Communication>(group, Communication::Call{.name = "all_reduce",
                                                                                  .dtype = terms.scalar_type(),
                                                                                  .length = terms.numel(),
                                                                                  .bytes_sent = n_bytes(),
                                                                                  .bytes_received = n_bytes(),
                                                                                  .counted_as = "all_reduce"})) {
    const auto backend = backend_of(group, "all_reduce", terms.device().type());
    works_ = communication_->launch([&] { return start(group, backend, waits); });
  }

  void finish() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    communication_->wait(works_);
    if (end_.valid())
      communication_->finish([&] {
        end_.get();
        return TaggedWorks();
      });
    if (!rows_.empty()) reduce_rows(index_, rows_, form_.op, form_.tensor.view(-1));
    from_reduce_form(form_, result_, reduce_, n_members_);
  }

 private:
  int64_t n_bytes() const { return 2 * static_cast<int64_t>(form_.tensor.nbytes()) * (n_members_ - 1) / n_members_; }

  TaggedWorks start(const Group& group, const c10::intrusive_ptr<c10d::Backend>& backend, WaitsFor waits) {
    const auto n_bytes = static_cast<int64_t>(form_.tensor.nbytes());
    if (waits == WaitsFor::kNothing) copy_terms();  // the program may write to them while the reduction goes on
    if (goes_tagged(*backend)) {
      if (waits != WaitsFor::kNothing && goes_doubling(group, n_bytes)) {
        copy_terms();
        const auto reduce = goes_by_tree(group, n_bytes) ? reduce_by_tree : reduce_by_doubling;
        reduce(*communication_, *backend, group, form_.tensor, form_.op);
        return {};
      }
      if (goes_whole(group, n_bytes)) {
        rows_ = rows_around(group, terms_.tensor.view(-1));
        return gather_tagged(*communication_, *backend, group, rows_[group.index], rows_);
      }
      if (goes_in_parts(n_bytes) && (waits == WaitsFor::kAll || form_.tensor.is_cpu())) {
        parts_ = std::make_shared<PartsReduction>(communication_, backend, group, terms_, form_);
        auto rest = [parts = parts_]() mutable {
          parts->finish();
          parts.reset();  // so that memory returns in the thread that waits
        };
        // Others may wait for the second round before this rank waits for anything.
        end_ = waits == WaitsFor::kAll ? std::async(std::launch::deferred, std::move(rest))
                                       : run_in_background(std::move(rest));
        return {};
      }
      meet_tagged(*communication_, *backend, group, n_bytes);
    }
    copy_terms();
    std::vector<at::Tensor> tensors{form_.tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = form_.op;
    return {backend->allreduce(tensors, options)};
  }

  /// Copies the terms into the result, to be reduced there in place.
  void copy_terms() {
    if (!form_.tensor.is_alias_of(terms_.tensor)) form_.tensor.view(-1).copy_(terms_.tensor.view(-1));
    terms_ = form_;
  }

  int64_t n_members_;
  int64_t index_;  // this rank's
  at::Tensor result_;
  Reduce reduce_;
  ReduceForm terms_;
  ReduceForm form_;  // of the result
  std::shared_ptr<Communication> communication_;
  TaggedWorks works_;
  std::vector<at::Tensor> rows_;  // the members' whole terms, if each sends them to all
  std::shared_ptr<PartsReduction> parts_;
  std::future<void> end_;  // of parts_
};

std::unique_ptr<Reduction> started(const Group& group, const at::Tensor& terms, const at::Tensor& result, Reduce reduce,
                                   WaitsFor waits) {
  check_contiguous("all_reduce", terms);
  check_reducible(terms, reduce);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (group.size() == 1 || terms.numel() == 0) {
    if (!result.is_same(terms)) result.copy_(terms);
    return nullptr;
  }
  check_policy("all_reduce");
  return std::make_unique<StartedReduction>(group, terms, result, reduce, waits);
}

}  // namespace

std::unique_ptr<Reduction> start_all_reduce(const Group& group, const at::Tensor& terms, const at::Tensor& result,
                                            Reduce reduce, WaitsFor waits) {
  return started(group, terms, result, reduce, waits);
}

void all_reduce(const Group& group, const at::Tensor& terms, const at::Tensor& result, Reduce reduce) {
  if (const auto reduction = started(group, terms, result, reduce, WaitsFor::kAll)) reduction->finish();
}

void broadcast(const Group& group, const at::Tensor& tensor, int64_t root_index) {
  check_contiguous("broadcast", tensor);
  SW_CHECK_VALUE(root_index >= 0 && root_index < group.size(),
                 "[broadcast] root index {} does not exist: the group has {} ranks. Use an index in [0, {}).",
                 root_index, group.size(), group.size());
  if (group.size() == 1 || tensor.numel() == 0) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> bytes{bytes_of(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root_index;
  const auto backend = backend_of(group, "broadcast", tensor.device().type());
  const int64_t n_bytes = bytes[0].numel();
  const bool is_root = group.index == root_index;
  Communication sending(group, {.name = "broadcast",
                                .dtype = tensor.scalar_type(),
                                .length = tensor.numel(),
                                .bytes_sent = is_root ? n_bytes * (group.size() - 1) : 0,
                                .bytes_received = is_root ? 0 : n_bytes,
                                .counted_as = "broadcast"});
  sending.run([&] {
    if (goes_tagged(*backend) && goes_whole(group, n_bytes)) {
      std::vector<at::Tensor> parts(group.size()), places(group.size());
      if (is_root)
        parts.assign(group.size(), bytes[0]);
      else
        places[root_index] = bytes[0];
      return exchange_tagged(sending, *backend, group, parts, places);
    }
    meet_tagged(sending, *backend, group, n_bytes);
    return TaggedWorks{backend->broadcast(bytes, options)};
  });
}

void all_gather(const Group& group, CommCall call, const at::Tensor& row, const at::Tensor& gathered) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto backend = backend_of(group, "all_gather", row.device().type());
  if (!group.sends) gathered.copy_(row.clone());  // the other ranks count as equal; the row may be a part of `gathered`
  call.dtype = row.scalar_type();
  call.length = row.numel();
  call.bytes_sent = call.bytes_received = static_cast<int64_t>(row.nbytes()) * (group.size() - 1);
  at::Tensor to = gathered.view(-1), from = row;
  Communication gathering(group, call);
  gathering.run([&] {
    if (!goes_tagged(*backend)) return TaggedWorks{backend->_allgather_base(to, from, {})};
    gather_rows(gathering, *backend, group, row, gathered);
    return TaggedWorks();
  });
}

std::vector<std::vector<int64_t>> all_gather_numbers(const Group& group, const std::vector<int64_t>& numbers) {
  return gather_numbers(group, "all_gather", numbers, /*is_counted=*/true);
}

}  // namespace shardwise
