#include "runtime/comm/messages.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/gil_release.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/order_check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace shardwise {
namespace {

constexpr int kTag = 7153;  // apart from the program's own messages in the same group, which use small ones

/// One end of a message as the backend takes it.
struct Parcel {
  int64_t index;  // of the other end, in the group
  at::Tensor bytes;
  std::function<void()> fill;
};
using Parcels = std::vector<Parcel>;

Parcels parcels_of(const Group& group, const std::vector<Message>& messages, const char* direction,
                   c10::DeviceType device) {
  Parcels parcels;
  for (const auto& [rank, tensor, fill] : messages) {
    check_contiguous("exchange", tensor);
    TORCH_CHECK_VALUE(tensor.numel() > 0,
                      fmt::format("[exchange] the message {} rank {} is empty, of shape {}. Leave it "
                                  "out on both ends.",
                                  direction, rank, tensor.sizes()));
    TORCH_CHECK_VALUE(tensor.device().type() == device,
                      fmt::format("[exchange] one message is on {}, another on {}. Use one kind of device.",
                                  c10::DeviceTypeName(device, true), tensor.device().str()));
    const int64_t index = group.index_of(rank);
    TORCH_CHECK_VALUE(index != group.index,
                      fmt::format("[exchange] rank {} has a message {} itself, of shape {}. Copy it "
                                  "instead.",
                                  rank, direction, tensor.sizes()));
    parcels.push_back({index, bytes_of(tensor), fill});
  }
  return parcels;
}

int64_t total_bytes(const Parcels& parcels) {
  int64_t n_bytes = 0;
  for (const Parcel& parcel : parcels) n_bytes += parcel.bytes.numel();
  return n_bytes;
}

bool are_to_different_ranks(const Parcels& parcels) {
  std::vector<int64_t> indices;
  for (const Parcel& parcel : parcels) indices.push_back(parcel.index);
  std::sort(indices.begin(), indices.end());
  return std::adjacent_find(indices.begin(), indices.end()) == indices.end();
}

/// A tensor per member, empty where there is none.
std::vector<at::Tensor> by_member(const Group& group, const Parcels& parcels, const at::TensorOptions& options) {
  std::vector<at::Tensor> tensors(group.size(), at::empty({0}, options));
  for (const Parcel& parcel : parcels) tensors[parcel.index] = parcel.bytes;
  return tensors;
}

using Works = std::vector<Messages::WorkPtr>;

/// Receives first, so that what arrives has its place.
Works start_each(c10d::Backend& backend, const Parcels& sends, const Parcels& receives) {
  Works works;
  for (const bool is_send : {false, true})
    for (const Parcel& parcel : is_send ? sends : receives) {
      if (parcel.fill) parcel.fill();
      std::vector<at::Tensor> one{parcel.bytes};
      const int other = static_cast<int>(parcel.index);
      works.push_back(is_send ? backend.send(one, other, kTag) : backend.recv(one, other, kTag));
    }
  return works;
}

/// Where sends must not wait for receives (NCCL): all in one launch.
Works start_together(c10d::Backend& backend, const Group& group, const Parcels& sends, const Parcels& receives) {
  for (const Parcel& parcel : sends)
    if (parcel.fill) parcel.fill();
  if (are_to_different_ranks(sends) && are_to_different_ranks(receives)) {
    const auto options = (sends.empty() ? receives : sends)[0].bytes.options();
    auto outputs = by_member(group, receives, options);
    auto inputs = by_member(group, sends, options);
    return {backend.alltoall(outputs, inputs)};
  }
  Parcels filled = sends;
  for (Parcel& parcel : filled) parcel.fill = nullptr;
  backend.startCoalescing();
  start_each(backend, filled, receives);
  return {backend.endCoalescing()};
}

}  // namespace

Messages::Messages(std::vector<WorkPtr> works, std::vector<at::Tensor> tensors)
    : works_(std::move(works)), tensors_(std::move(tensors)) {}

Messages::~Messages() {
  if (works_.empty() || std::uncaught_exceptions() > 0) return;
  try {
    wait();
  } catch (...) {
    tensors_.clear();  // the error goes unsaid: a destructor has nobody to tell
  }
}

void Messages::wait() {
  if (works_.empty()) return;
  const auto works = std::exchange(works_, {});
  const auto tensors = std::exchange(tensors_, {});
  const GilRelease waiting;
  for (const WorkPtr& work : works)
    if (work) work->wait();
}

std::shared_ptr<Messages> exchange(const Group& group, std::vector<Message> sends, std::vector<Message> receives,
                                   bool by_all) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool is_idle = sends.empty() && receives.empty();
  const auto device = is_idle ? c10::kCPU : (sends.empty() ? receives : sends)[0].tensor.device().type();
  const Parcels outgoing = parcels_of(group, sends, "to", device);
  const Parcels incoming = parcels_of(group, receives, "from", device);
  if (by_all) check_order(group, "exchange");
  if (is_idle) return std::make_shared<Messages>();

  const auto backend = backend_of(group, "exchange", device);
  const GilRelease waiting;  // a backend may connect to the other rank first
  Works works = backend->supportsCoalescing() ? start_together(*backend, group, outgoing, incoming)
                                              : start_each(*backend, outgoing, incoming);
  std::vector<at::Tensor> tensors;
  for (const Parcels* parcels : {&outgoing, &incoming})
    for (const Parcel& parcel : *parcels) tensors.push_back(parcel.bytes);
  CommTrace::record("all_to_all", group.size(), total_bytes(outgoing), total_bytes(incoming));
  return std::make_shared<Messages>(std::move(works), std::move(tensors));
}

}  // namespace shardwise
