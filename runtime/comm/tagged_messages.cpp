#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/reduce_dtype.h"

#include <ATen/ops/empty.h>

namespace shardwise {
namespace {

constexpr int64_t kMaxSentBytes = 64 << 10;  // above this, the bytes cost more than a second round of messages
constexpr int64_t kMaxParts = 1 << 20;       // bytes; above this, a backend that reduces while it receives is faster

int tag_of(const Communication& communication, int64_t n_bytes) {
  const auto bits = static_cast<int>(communication.fingerprint(n_bytes) & (kFirstMessageTag - 1));
  return kFirstMessageTag | bits;
}

/// Starts the receives first, so that arriving messages have a destination. `tag_of_bytes(bytes)` is the tag of a message.
template <class TagOf>
TaggedWorks exchange(c10d::Backend& backend, const Group& group, const std::vector<at::Tensor>& parts,
                     const std::vector<at::Tensor>& places, const TagOf& tag_of_bytes) {
  TaggedWorks works;
  for (const bool is_send : {false, true})
    for (int64_t i = 0; i < group.size(); ++i) {
      const at::Tensor& tensor = (is_send ? parts : places)[i];
      if (i == group.index || !tensor.defined() || tensor.numel() == 0) continue;
      std::vector<at::Tensor> one{bytes_of(tensor)};
      const int tag = tag_of_bytes(one[0]), other = static_cast<int>(i);
      works.push_back(is_send ? backend.send(one, other, tag) : backend.recv(one, other, tag));
    }
  return works;
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

bool goes_in_parts(int64_t n_bytes) { return n_bytes <= kMaxParts; }

void meet_tagged(const Communication& communication, c10d::Backend& backend, const Group& group, int64_t n_bytes) {
  if (!goes_tagged(backend)) return;
  const auto bytes = at::empty({group.size()}, at::kByte).split(1);
  const int tag = tag_of(communication, n_bytes);
  const std::vector<at::Tensor> parts(group.size(), bytes[group.index]);
  for (const auto& work : exchange(backend, group, parts, bytes, [=](const at::Tensor&) { return tag; })) work->wait();
}

TaggedWorks exchange_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                            const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& places) {
  const at::Tensor &own = parts[group.index], &place = places[group.index];
  auto works = exchange(backend, group, parts, places,
                        [&](const at::Tensor& bytes) { return tag_of(communication, bytes.numel()); });
  if (own.defined() && place.defined() && place.data_ptr() != own.data_ptr()) place.copy_(own.view_as(place));
  return works;
}

TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places) {
  return exchange_tagged(communication, backend, group, std::vector<at::Tensor>(group.size(), own), places);
}

void reduce_rows(const at::Tensor& rows, c10d::ReduceOp::RedOpType op, const at::Tensor& result) {
  const at::Tensor total = result.view({-1});
  total.copy_(rows[0]);
  for (int64_t i = 1; i < rows.size(0); ++i) accumulate(total, rows[i], op);
}

}  // namespace shardwise
