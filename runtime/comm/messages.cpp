#include "runtime/comm/messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/message_thread.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

namespace shardwise {
namespace {

/// One end of a message in the form that the backend takes.
struct ByteMessage {
  int64_t index;  // of the other end in the group
  at::Tensor bytes;
  std::function<void()> fill;
  int64_t n_counted;
};
using ByteMessages = std::vector<ByteMessage>;

ByteMessages byte_messages_of(const Group& group, const std::vector<Message>& messages, const char* direction,
                              c10::DeviceType device) {
  ByteMessages result;
  for (const auto& [rank, tensor, fill, n_bytes_there] : messages) {
    check_contiguous("exchange", tensor);
    SW_CHECK_VALUE(tensor.numel() > 0,
                   "[exchange] the message {} rank {} is empty, of shape {}. Leave it out on both ends.", direction,
                   rank, tensor.sizes());
    SW_CHECK_VALUE(
        tensor.device().type() == device,
        "[exchange] the message {} rank {} is on {}, but the exchange is of {} tensors. Move it there first.",
        direction, rank, tensor.device().str(), c10::DeviceTypeName(device, true));
    const int64_t index = group.index_of(rank);
    SW_CHECK_VALUE(index != group.index, "[exchange] rank {} has a message {} itself, of shape {}. Copy it instead.",
                   rank, direction, tensor.sizes());
    const auto n_bytes = static_cast<int64_t>(tensor.nbytes());
    result.push_back({index, bytes_of(tensor), fill, n_bytes_there > 0 ? n_bytes_there : n_bytes});
  }
  return result;
}

int64_t total_bytes(const ByteMessages& messages) {
  int64_t n_bytes = 0;
  for (const ByteMessage& message : messages) n_bytes += message.n_counted;
  return n_bytes;
}

using Works = std::vector<Messages::WorkPtr>;

constexpr int64_t kMaxJobBytes = 1 << 20;  // a job of the thread that writes messages ends after so many

/// Starts a receive and a send in turn, as exchange_tagged() does. `write(job)` runs a part of this on the thread that writes messages. Sends are filled
/// outside of it: Note [Messages have a thread].
template <class Write>
Works start_each(const Communication& communication, c10d::Backend& backend, const ByteMessages& sends,
                 const ByteMessages& receives, const Write& write) {
  Works works;
  const size_t n = std::max(sends.size(), receives.size());
  const auto is_filled_now = [&](size_t i) { return i < sends.size() && sends[i].fill; };
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    if (is_filled_now(begin)) sends[begin].fill();
    for (int64_t n_bytes = 0; end == begin || (end < n && n_bytes < kMaxJobBytes && !is_filled_now(end)); ++end)
      if (end < sends.size()) n_bytes += sends[end].bytes.numel();
    write([&] {
      for (size_t i = begin; i < end; ++i) {
        if (i < receives.size())
          works.push_back(receive_tagged(communication, backend, receives[i].bytes, receives[i].index));
        if (i < sends.size()) works.push_back(send_tagged(communication, backend, sends[i].bytes, sends[i].index));
      }
    });
  }
  return works;
}

/// Starts all messages in one launch.
Works start_grouped(const Communication& communication, c10d::Backend& backend, ByteMessages sends,
                    const ByteMessages& receives) {
  for (ByteMessage& message : sends)
    if (const auto fill = std::exchange(message.fill, nullptr)) fill();
  backend.startCoalescing();
  try {
    start_each(communication, backend, sends, receives, [](const auto& job) { job(); });
  } catch (...) {
    backend.endCoalescing();
    throw;
  }
  return {backend.endCoalescing()};
}

}  // namespace

Messages::Messages() = default;

Messages::Messages(std::unique_ptr<Communication> communication, std::vector<WorkPtr> works,
                   std::vector<at::Tensor> tensors)
    : communication_(std::move(communication)), works_(std::move(works)), tensors_(std::move(tensors)) {}

Messages::~Messages() {
  if (works_.empty() || std::uncaught_exceptions() > 0) return;
  try {
    wait();
  } catch (...) {
    tensors_.clear();  // a destructor cannot report the error
  }
}

void Messages::wait() {
  if (failure_) std::rethrow_exception(failure_);
  if (works_.empty()) return;
  const auto works = std::exchange(works_, {});
  const auto tensors = std::exchange(tensors_, {});
  const auto communication = std::move(communication_);
  try {
    communication->wait(works);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

std::shared_ptr<Messages> exchange(const Group& group, c10::Device device, std::vector<Message> sends,
                                   std::vector<Message> receives, bool by_all,
                                   const std::function<const char*()>& pattern) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ByteMessages outgoing = byte_messages_of(group, sends, "to", device.type());
  const ByteMessages incoming = byte_messages_of(group, receives, "from", device.type());
  check_comm_policy([] { return std::string("sends messages to other ranks"); });
  const bool has_part = !outgoing.empty() || !incoming.empty();
  if (!has_part && !by_all) return std::make_shared<Messages>();

  const char* const counted_as = pattern && comm_thread().stream != nullptr ? pattern() : "all_to_all";
  auto communication =
      std::make_unique<Communication>(group, Communication::Call{.name = "exchange",
                                                                 .bytes_sent = total_bytes(outgoing),
                                                                 .bytes_received = total_bytes(incoming),
                                                                 .counted_as = has_part ? counted_as : nullptr,
                                                                 .by_all = by_all});
  if (by_all) connect(group, "exchange", device);  // after the ranks have compared their calls
  if (!has_part || !group.sends) {
    has_part ? communication->run([] { return Works(); }) : communication->finish();
    return std::make_shared<Messages>();
  }
  const auto backend = backend_of(group, "exchange", device.type());
  const BackendTraits traits = traits_of(*backend);
  if (!traits.delivers)
    for (const ByteMessage& message : incoming) message.bytes.zero_();
  Works works = communication->launch([&] {
    if (traits.groups_messages) return start_grouped(*communication, *backend, outgoing, incoming);
    return start_each(*communication, *backend, outgoing, incoming,
                      [&](const auto& job) { goes_tagged(*backend) ? run_on_message_thread(device, job) : job(); });
  });
  std::vector<at::Tensor> tensors;
  for (const ByteMessages* messages : {&outgoing, &incoming})
    for (const ByteMessage& message : *messages) tensors.push_back(message.bytes);
  return std::make_shared<Messages>(std::move(communication), std::move(works), std::move(tensors));
}

}  // namespace shardwise
