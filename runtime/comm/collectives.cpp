#include "runtime/comm/collectives.h"

#include "runtime/comm/comm_policy.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/comm/waiting.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

void check_splits(const Group& group, const char* which, const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  const bool is_right = static_cast<int64_t>(splits.size()) == group.size() && tensor.dim() == 1 &&
                        std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; }) &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.numel();
  TORCH_CHECK_VALUE(is_right,
                    fmt::format("[all_to_all] {} splits {} do not split a tensor of shape {} among {} ranks. Give one "
                                "count per rank that add up to the elements of a flat tensor.",
                                which, splits, tensor.sizes(), group.size()));
}

void check_policy(const char* collective) {
  check_comm_policy([=] { return fmt::format("sends an {}", collective); });
}

/// gather_rows, counted.
at::Tensor all_gather_even(const Group& group, const at::Tensor& numbers) {
  const at::Tensor gathered = gather_rows(group, numbers);
  const int64_t n_bytes = numbers.nbytes() * (group.size() - 1);
  CommTrace::record("all_gather", group.size(), n_bytes, n_bytes);
  return gathered;
}

}  // namespace

void all_to_all(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits) {
  check_contiguous("all_to_all", output);
  check_contiguous("all_to_all", input);
  check_splits(group, "receive", output, receive_splits);
  check_splits(group, "send", input, send_splits);
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                    fmt::format("[all_to_all] sends {} but receives {}. Use one dtype.",
                                at::toString(input.scalar_type()), at::toString(output.scalar_type())));
  if (output.is_meta()) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (group.size() == 1) {
    output.copy_(input);
    return;
  }
  check_policy("all_to_all");
  check_order(group, "all_to_all", input.scalar_type());
  const int64_t element_bytes = input.element_size();
  const auto in_bytes = [=](std::vector<int64_t> splits) {
    for (int64_t& split : splits) split *= element_bytes;
    return splits;
  };
  std::vector<int64_t> received = in_bytes(receive_splits);  // Gloo moves these two away
  std::vector<int64_t> sent = in_bytes(send_splits);
  at::Tensor to = bytes_of(output);
  at::Tensor from = bytes_of(input);
  const Waiting waiting(group, "all_to_all");
  backend_of(group, "all_to_all", input.device().type())->alltoall_base(to, from, received, sent)->wait();
  CommTrace::record("all_to_all", group.size(), from.numel() - send_splits[group.index] * element_bytes,
                    to.numel() - receive_splits[group.index] * element_bytes);
}

namespace {

class StartedReduction final : public Reduction {
 public:
  StartedReduction(const Group& group, const at::Tensor& tensor, Reduce reduce)
      : tensor_(tensor),
        reduce_(reduce),
        ranks_(group.ranks),
        rank_(group.ranks[group.index]),
        form_(to_reduce_form(tensor, reduce)) {
    std::vector<at::Tensor> tensors{form_.tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = form_.op;
    const Waiting waiting(group, "all_reduce");  // a backend may connect to other ranks first
    work_ = backend_of(group, "all_reduce", tensor.device().type())->allreduce(tensors, options);
    const int64_t n_bytes = 2 * static_cast<int64_t>(form_.tensor.nbytes()) * (n_ranks() - 1) / n_ranks();
    CommTrace::record("all_reduce", n_ranks(), n_bytes, n_bytes);
  }

  void finish() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    {
      const Waiting waiting(ranks_, rank_, "all_reduce");
      work_->wait();
    }
    from_reduce_form(form_, tensor_, reduce_, n_ranks());
  }

 private:
  int64_t n_ranks() const { return static_cast<int64_t>(ranks_.size()); }

  at::Tensor tensor_;
  Reduce reduce_;
  std::vector<int64_t> ranks_;
  int64_t rank_;
  ReduceForm form_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace

std::unique_ptr<Reduction> start_all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce) {
  check_contiguous("all_reduce", tensor);
  check_reducible(tensor, reduce);
  if (group.size() == 1 || tensor.numel() == 0 || tensor.is_meta()) return nullptr;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_policy("all_reduce");
  check_order(group, "all_reduce", tensor.scalar_type());
  return std::make_unique<StartedReduction>(group, tensor, reduce);
}

void all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce) {
  if (const auto reduction = start_all_reduce(group, tensor, reduce)) reduction->finish();
}

void broadcast(const Group& group, const at::Tensor& tensor, int64_t root_index) {
  check_contiguous("broadcast", tensor);
  TORCH_CHECK_VALUE(
      root_index >= 0 && root_index < group.size(),
      fmt::format("[broadcast] root index {} does not exist: the group has {} ranks. Use an index in [0, {}).",
                  root_index, group.size(), group.size()));
  if (group.size() == 1 || tensor.numel() == 0 || tensor.is_meta()) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_order(group, "broadcast", tensor.scalar_type());
  std::vector<at::Tensor> bytes{bytes_of(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root_index;
  const Waiting waiting(group, "broadcast");
  backend_of(group, "broadcast", tensor.device().type())->broadcast(bytes, options)->wait();
  const int64_t n_bytes = bytes[0].numel();
  const bool is_root = group.index == root_index;
  CommTrace::record("broadcast", group.size(), is_root ? n_bytes * (group.size() - 1) : 0, is_root ? 0 : n_bytes);
}

std::vector<std::vector<int64_t>> all_gather_numbers(const Group& group, const std::vector<int64_t>& numbers) {
  if (group.size() == 1) return {numbers};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_order(group, "all_gather");
  const auto options = at::TensorOptions(at::kLong).device(numbers_device(group));
  const auto length = static_cast<int64_t>(numbers.size());
  const at::Tensor lengths = all_gather_even(group, at::full({1}, length, options)).view(-1);
  const int64_t longest = lengths.max().item<int64_t>();
  std::vector<std::vector<int64_t>> result(group.size());
  if (longest == 0) return result;
  const at::Tensor padded = at::zeros({longest}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), padded.mutable_data_ptr<int64_t>());
  const at::Tensor gathered = all_gather_even(group, padded.to(options.device()));
  for (int64_t i = 0; i < group.size(); ++i) {
    const int64_t* const row = gathered.const_data_ptr<int64_t>() + i * longest;
    result[i].assign(row, row + lengths.const_data_ptr<int64_t>()[i]);
  }
  return result;
}

}  // namespace shardwise
