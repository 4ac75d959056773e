#include "runtime/comm/collectives.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
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

class StartedReduction final : public Reduction {
 public:
  /// `is_awaited`: finish() follows at once.
  StartedReduction(const Group& group, const at::Tensor& tensor, Reduce reduce, bool is_awaited)
      : group_(group),
        tensor_(tensor),
        reduce_(reduce),
        form_(to_reduce_form(tensor, reduce)),
        communication_(group, {.name = "all_reduce",
                               .dtype = tensor.scalar_type(),
                               .length = tensor.numel(),
                               .bytes_sent = n_bytes(),
                               .bytes_received = n_bytes(),
                               .counted_as = "all_reduce"}),
        backend_(backend_of(group, "all_reduce", tensor.device().type())) {
    works_ = communication_.launch([&] {
      const auto n_bytes = static_cast<int64_t>(form_.tensor.nbytes());
      if (goes_tagged(*backend_)) {
        if (is_awaited && goes_doubling(group_, n_bytes)) {
          reduce_by_doubling(communication_, *backend_, group_, form_.tensor, form_.op);
          return TaggedWorks();
        }
        if (goes_whole(group_, n_bytes)) return send_whole();
        if (goes_in_parts(n_bytes)) return send_parts();
        meet_tagged(communication_, *backend_, group_, n_bytes);
      }
      std::vector<at::Tensor> tensors{form_.tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = form_.op;
      return TaggedWorks{backend_->allreduce(tensors, options)};
    });
  }

  void finish() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    communication_.wait(works_);
    if (rows_.defined()) reduce_rows(rows_, form_.op, own_part_);
    if (!parts_.empty())
      communication_.finish([&] { return gather_tagged(communication_, *backend_, group_, own_part_, parts_); });
    from_reduce_form(form_, tensor_, reduce_, group_.size());
  }

 private:
  int64_t n_bytes() const {
    return 2 * static_cast<int64_t>(form_.tensor.nbytes()) * (group_.size() - 1) / group_.size();
  }

  TaggedWorks send_whole() {
    own_part_ = form_.tensor;
    rows_ = at::empty({group_.size(), own_part_.numel()}, own_part_.options());
    return gather_tagged(communication_, *backend_, group_, own_part_, rows_.unbind());
  }

  TaggedWorks send_parts() {
    const at::Tensor flat = form_.tensor.view(-1);
    parts_ = flat.tensor_split(group_.size());
    own_part_ = parts_[group_.index];
    rows_ = at::empty({group_.size(), own_part_.numel()}, flat.options());
    return exchange_tagged(communication_, *backend_, group_, parts_, rows_.unbind());
  }

  Group group_;  // a copy: the caller's may end before the reduction does
  at::Tensor tensor_;
  Reduce reduce_;
  ReduceForm form_;
  Communication communication_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  TaggedWorks works_;
  // For tagged messages: the part that this rank reduces, the members' terms of it, and all parts if there are several.
  at::Tensor own_part_, rows_;
  std::vector<at::Tensor> parts_;
};

std::unique_ptr<Reduction> started(const Group& group, const at::Tensor& tensor, Reduce reduce, bool is_awaited) {
  check_contiguous("all_reduce", tensor);
  check_reducible(tensor, reduce);
  if (group.size() == 1 || tensor.numel() == 0) return nullptr;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_policy("all_reduce");
  return std::make_unique<StartedReduction>(group, tensor, reduce, is_awaited);
}

}  // namespace

std::unique_ptr<Reduction> start_all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce) {
  return started(group, tensor, reduce, /*is_awaited=*/false);
}

void all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce) {
  if (const auto reduction = started(group, tensor, reduce, /*is_awaited=*/true)) reduction->finish();
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

std::vector<std::vector<int64_t>> all_gather_numbers(const Group& group, const std::vector<int64_t>& numbers) {
  return gather_numbers(group, "all_gather", numbers, /*is_counted=*/true);
}

}  // namespace shardwise
