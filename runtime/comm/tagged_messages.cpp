#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/message_thread.h"
#include "runtime/comm/reduce_dtype.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <bit>

namespace shardwise {
namespace {

constexpr int64_t kMaxSentBytes = 64 << 10;    // above this, the bytes cost more than a second round of messages
constexpr int64_t kMaxDoubledBytes = 1 << 20;  // in all rounds; above this, the bytes cost more than more messages
constexpr int64_t kMaxParts = 1 << 20;         // bytes; above this, a backend that reduces while it receives is faster

int tag_of(const Communication& communication, int64_t n_bytes) {
  const auto bits = static_cast<int>(communication.fingerprint(n_bytes) & (kFirstMessageTag - 1));
  return kFirstMessageTag | bits;
}

/// Starts with the neighbours, and alternates receives and sends: if all ranks began with the same one, its connections would be busy.
/// `tag_of_bytes(bytes)` is the tag of a message.
template <class TagOf>
TaggedWorks exchange(c10d::Backend& backend, const Group& group, const std::vector<at::Tensor>& parts,
                     const std::vector<at::Tensor>& places, const TagOf& tag_of_bytes) {
  TaggedWorks works;
  for (int64_t distance = 1; distance < group.size(); ++distance)
    for (const bool is_send : {false, true}) {
      const int64_t other = (group.index + (is_send ? distance : group.size() - distance)) % group.size();
      const at::Tensor& tensor = (is_send ? parts : places)[other];
      if (!tensor.defined() || tensor.numel() == 0) continue;
      std::vector<at::Tensor> one{bytes_of(tensor)};
      const int tag = tag_of_bytes(one[0]), to = static_cast<int>(other);
      works.push_back(is_send ? backend.send(one, to, tag) : backend.recv(one, to, tag));
    }
  return works;
}

void wait_for_all(const TaggedWorks& works) {
  for (const auto& work : works) work->wait();
}

}  // namespace

Communication::WorkPtr send_tagged(const Communication& communication, c10d::Backend& backend, const at::Tensor& bytes,
                                   int64_t other) {
  std::vector<at::Tensor> one{bytes};
  return backend.send(one, static_cast<int>(other), tag_of(communication, bytes.numel()));
}

Communication::WorkPtr receive_tagged(const Communication& communication, c10d::Backend& backend,
                                      const at::Tensor& bytes, int64_t other) {
  std::vector<at::Tensor> one{bytes};
  return backend.recv(one, static_cast<int>(other), tag_of(communication, bytes.numel()));
}

bool goes_tagged(const c10d::Backend& backend) { return !traits_of(backend).names_collectives; }

bool goes_whole(const Group& group, int64_t n_bytes) { return (group.size() - 1) * n_bytes <= kMaxSentBytes; }

bool goes_doubling(const Group& group, int64_t n_bytes) {
  return n_bytes * std::bit_width(static_cast<uint64_t>(group.size() - 1)) <= kMaxDoubledBytes;
}

bool goes_in_parts(int64_t n_bytes) { return n_bytes <= kMaxParts; }

void meet_tagged(const Communication& communication, c10d::Backend& backend, const Group& group, int64_t n_bytes) {
  if (!goes_tagged(backend)) return;
  const auto bytes = at::empty({group.size()}, at::kByte).split(1);
  const int tag = tag_of(communication, n_bytes);
  const std::vector<at::Tensor> parts(group.size(), bytes[group.index]);
  run_on_message_thread(
      at::kCPU, [&] { wait_for_all(exchange(backend, group, parts, bytes, [=](const at::Tensor&) { return tag; })); });
}

TaggedWorks exchange_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                            const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& places) {
  const at::Tensor &own = parts[group.index], &place = places[group.index];
  const at::Device device = own.defined() ? own.device() : place.defined() ? place.device() : at::Device(at::kCPU);
  TaggedWorks works;
  run_on_message_thread(device, [&] {
    works = exchange(backend, group, parts, places,
                     [&](const at::Tensor& bytes) { return tag_of(communication, bytes.numel()); });
  });
  if (own.defined() && place.defined() && place.data_ptr() != own.data_ptr()) place.copy_(own.view_as(place));
  return works;
}

TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places) {
  return exchange_tagged(communication, backend, group, std::vector<at::Tensor>(group.size(), own), places);
}

void reduce_by_doubling(const Communication& communication, c10d::Backend& backend, const Group& group,
                        const at::Tensor& total, c10d::ReduceOp::RedOpType op) {
  const int64_t n = group.size(), index = group.index;
  const auto n_doubling = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  const at::Tensor other = at::empty_like(total);
  const auto send = [&](int64_t to) { return send_tagged(communication, backend, bytes_of(total), to); };
  const auto receive = [&](const at::Tensor& place, int64_t from) {
    return receive_tagged(communication, backend, bytes_of(place), from);
  };
  run_on_message_thread(total.device(), [&] {
    if (index >= n_doubling) {  // a guest of another member
      send(index - n_doubling)->wait();
      receive(total, index - n_doubling)->wait();
      return;
    }
    const bool has_guest = index + n_doubling < n;
    if (has_guest) {
      receive(other, index + n_doubling)->wait();
      accumulate(total, other, op);
    }
    for (int64_t step = 1; step < n_doubling; step *= 2) {
      const auto received = receive(other, index ^ step);
      wait_for_all({received, send(index ^ step)});
      accumulate(total, other, op);
    }
    if (has_guest) send(index + n_doubling)->wait();
  });
}

void reduce_rows(const at::Tensor& rows, c10d::ReduceOp::RedOpType op, const at::Tensor& result) {
  const at::Tensor total = result.view({-1});
  total.copy_(rows[0]);
  for (int64_t i = 1; i < rows.size(0); ++i) accumulate(total, rows[i], op);
}

}  // namespace shardwise
