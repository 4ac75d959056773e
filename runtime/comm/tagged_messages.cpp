#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/message_thread.h"
#include "runtime/comm/reduce_dtype.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>

namespace shardwise {
namespace {

constexpr int64_t kMaxSentBytes = 64 << 10;    // above this, the bytes cost more than a second round of messages
constexpr int64_t kMaxDoubledBytes = 1 << 20;  // in all rounds; above this, the bytes cost more than more messages
constexpr int64_t kFewMembers = 8;             // above this, a message to each member costs more than log2(n) rounds
constexpr int64_t kMaxParts = 1 << 20;         // bytes; above this, a backend that reduces while it receives is faster

int tag_of(const Communication& communication, int64_t n_bytes) {
  const auto bits = static_cast<int>(communication.fingerprint(n_bytes) & (kFirstMessageTag - 1));
  return kFirstMessageTag | bits;
}

/// The index of the member `distance` places after this one, or before it, in a circle.
int member_at(const Group& group, int64_t distance) {
  return static_cast<int>((group.index + distance + group.size()) % group.size());
}

/// Starts with the neighbours, and alternates receives and sends: if all ranks began with the same one, its connections would be busy.
TaggedWorks exchange(const Communication& communication, c10d::Backend& backend, const Group& group,
                     const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& places) {
  TaggedWorks works;
  for (int64_t distance = 1; distance < group.size(); ++distance)
    for (const bool is_send : {false, true}) {
      const int64_t other = member_at(group, is_send ? distance : -distance);
      const at::Tensor& tensor = (is_send ? parts : places)[other];
      if (!tensor.defined() || tensor.numel() == 0) continue;
      works.push_back((is_send ? send_tagged : receive_tagged)(communication, backend, bytes_of(tensor), other));
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
  std::vector<at::Tensor> sent{at::empty({1}, at::kByte)}, received{at::empty({1}, at::kByte)};
  const int tag = tag_of(communication, n_bytes);
  run_on_message_thread(at::kCPU, [&] {
    for (int64_t step = 1; step < group.size(); step *= 2) {
      const auto arrival = backend.recv(received, member_at(group, -step), tag);
      wait_for_all({backend.send(sent, member_at(group, step), tag), arrival});
    }
  });
}

TaggedWorks exchange_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                            const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& places) {
  const at::Tensor &own = parts[group.index], &place = places[group.index];
  const at::Device device = own.defined() ? own.device() : place.defined() ? place.device() : at::Device(at::kCPU);
  TaggedWorks works;
  run_on_message_thread(device, [&] { works = exchange(communication, backend, group, parts, places); });
  if (own.defined() && place.defined() && place.data_ptr() != own.data_ptr()) place.copy_(own.view_as(place));
  return works;
}

TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places) {
  return exchange_tagged(communication, backend, group, std::vector<at::Tensor>(group.size(), own), places);
}

TaggedWorks gather_rows(const Communication& communication, c10d::Backend& backend, const Group& group,
                        const at::Tensor& own, const at::Tensor& gathered) {
  const int64_t n = group.size(), n_before = group.index;
  if (n <= kFewMembers) return gather_tagged(communication, backend, group, own, gathered.unbind());
  const at::Tensor rows = at::empty_like(gathered);  // row i is the part of the member i places after this one
  rows[0].copy_(own);
  run_on_message_thread(own.device(), [&] {
    for (int64_t step = 1; step < n; step *= 2) {
      const int64_t n_rows = std::min(step, n - step);
      const auto arrival =
          receive_tagged(communication, backend, bytes_of(rows.narrow(0, step, n_rows)), member_at(group, step));
      wait_for_all(
          {send_tagged(communication, backend, bytes_of(rows.narrow(0, 0, n_rows)), member_at(group, -step)), arrival});
    }
  });
  gathered.narrow(0, n_before, n - n_before).copy_(rows.narrow(0, 0, n - n_before));
  gathered.narrow(0, 0, n_before).copy_(rows.narrow(0, n - n_before, n_before));
  return {};
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
