#include "threads/thread_calls.h"

#include "runtime/comm/reduce_dtype.h"
#include "text/check.h"

#include <ATen/ops/cat.h>

#include <numeric>

namespace shardwise {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

const char* name_of(RedOp op) {
  switch (op) {
    case RedOp::SUM:
      return "sum";
    case RedOp::AVG:
      return "avg";
    case RedOp::PRODUCT:
      return "product";
    case RedOp::MIN:
      return "min";
    case RedOp::MAX:
      return "max";
    case RedOp::BAND:
      return "bitwise and";
    case RedOp::BOR:
      return "bitwise or";
    case RedOp::BXOR:
      return "bitwise xor";
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, "[threads] ranks that are threads cannot reduce with a pre-multiplied sum. Multiply, then sum.");
  }
}

/// Reduces in group order, so that all members get the same bits.
at::Tensor reduced(const Offers& offers, RedOp op) {
  const std::vector<Offer>& each = offers.by_member;
  at::Tensor total = each[0].tensors[0].clone();
  for (size_t i = 1; i < each.size(); ++i) accumulate(total, each[i].tensors[0], op);
  return op == RedOp::AVG ? total.div_(static_cast<int64_t>(each.size())) : total;
}

/// The number of elements per member for these `splits` of dim 0.
std::vector<int64_t> element_counts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int64_t n_members) {
  if (splits.empty()) {
    SW_CHECK_VALUE(tensor.size(0) % n_members == 0,
                   "[all_to_all] {} rows do not split evenly among {} ranks. Give splits.", tensor.size(0), n_members);
    return std::vector<int64_t>(n_members, tensor.numel() / n_members);
  }
  const bool is_right = static_cast<int64_t>(splits.size()) == n_members &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.size(0);
  SW_CHECK_VALUE(is_right,
                 "[all_to_all] splits {} do not add up to the {} rows of the tensor for {} ranks. Give one per rank.",
                 splits, tensor.size(0), n_members);
  std::vector<int64_t> counts = splits;
  for (int64_t& count : counts) count = tensor.size(0) == 0 ? 0 : count * (tensor.numel() / tensor.size(0));
  return counts;
}

void check_counts(const std::vector<Offer>& offers) {
  for (size_t from = 0; from < offers.size(); ++from)
    for (size_t to = 0; to < offers.size(); ++to)
      SW_CHECK_VALUE(offers[from].send_counts[to] == offers[to].receive_counts[from],
                     "[all_to_all] member {} sends {} elements to member {}, which expects {}. Make the splits agree.",
                     from, offers[from].send_counts[to], to, offers[to].receive_counts[from]);
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} {}", tensor.numel(), at::toString(tensor.scalar_type()));
}

const at::Tensor& only(const char* op, const std::vector<at::Tensor>& tensors) {
  SW_CHECK_VALUE(tensors.size() == 1, "[{}] got {} tensors. Pass one.", op, tensors.size());
  return tensors[0];
}

void check_other_member(const char* op, int64_t other, int64_t index, int64_t n_members) {
  SW_CHECK_VALUE(other >= 0 && other < n_members && other != index,
                 "[{}] member {} names member {} of {}. Name another one in [0, {}).", op, index, other, n_members,
                 n_members);
}

void receive_into(const at::Tensor& to, const at::Tensor& sent, int64_t from_rank, int64_t own_rank) {
  SW_CHECK_VALUE(sent.numel() == to.numel() && sent.scalar_type() == to.scalar_type(),
                 "[receive] rank {} sends {} to rank {}, which expects {}. Make the two ends agree.", from_rank,
                 describe(sent), own_rank, describe(to));
  to.copy_(sent.view(to.sizes()));
}

ThreadCall all_reduce_call(const std::vector<at::Tensor>& tensors, RedOp op) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  return {.offer = {"all_reduce", fmt::format("{} of {}", name_of(op), describe(tensor)), {tensor}, {}, {}},
          .outputs = {tensor},
          .read = [=](const Offers& offers) { tensor.copy_(offers.common([&] { return reduced(offers, op); })); }};
}

ThreadCall broadcast_call(const std::vector<at::Tensor>& tensors, int64_t root, int64_t index) {
  const at::Tensor& tensor = only("broadcast", tensors);
  const bool is_root = root == index;
  Offer offer{"broadcast", fmt::format("{} from {}", describe(tensor), root), {}, {}, {}};
  if (is_root) offer.tensors = {tensor};
  return {.offer = std::move(offer),
          .outputs = is_root ? std::vector<at::Tensor>{} : std::vector<at::Tensor>{tensor},
          .read = [=](const Offers& offers) {
            if (!is_root) tensor.copy_(offers.by_member.at(root).tensors[0]);
          }};
}

ThreadCall all_gather_call(const at::Tensor& output, const at::Tensor& input, int64_t n_members) {
  SW_CHECK_VALUE(output.numel() == input.numel() * n_members,
                 "[all_gather] an output of {} elements does not hold {} parts of {} elements, one per rank. Pass "
                 "tensors that fit.",
                 output.numel(), n_members, input.numel());
  return {.offer = {"all_gather", describe(input), {input}, {}, {}},
          .outputs = {output},
          .read = [=](const Offers& offers) {
            output.view(-1).copy_(offers.common([&] {
              std::vector<at::Tensor> parts;
              for (const Offer& each : offers.by_member) parts.push_back(each.tensors[0].view(-1));
              return at::cat(parts);
            }));
          }};
}

ThreadCall all_to_all_call(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits,
                           int64_t index, int64_t n_members) {
  return {.offer = {"all_to_all",
                    at::toString(input.scalar_type()),
                    {input},
                    element_counts(input, send_splits, n_members),
                    element_counts(output, receive_splits, n_members)},
          .outputs = {output},
          .read = [=](const Offers& offers) {
            offers.common([&] { return check_counts(offers.by_member), at::Tensor(); });
            int64_t begin = 0;
            for (const Offer& from : offers.by_member) {
              const int64_t count = from.send_counts[index];
              const int64_t from_begin =
                  std::accumulate(from.send_counts.begin(), from.send_counts.begin() + index, int64_t{0});
              output.view(-1).narrow(0, begin, count).copy_(from.tensors[0].view(-1).narrow(0, from_begin, count));
              begin += count;
            }
          }};
}

}  // namespace shardwise
