#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace shardwise {
namespace {

constexpr int64_t kMaxSentBytes = 64 << 10;  // above this, the bytes cost more than a second round of messages
constexpr int64_t kMaxParts = 1 << 20;       // bytes; above this, a backend that reduces while it receives is faster

int tag_of(const Communication& communication, int64_t n_bytes) {
  const auto bits = static_cast<int>(communication.fingerprint(n_bytes) & (kFirstMessageTag - 1));
  return kFirstMessageTag | bits;
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
  const int tag = tag_of(communication, n_bytes);
  const at::Tensor bytes = at::empty({group.size()}, at::kByte);
  TaggedWorks works;
  for (const bool is_send : {false, true})
    for (int64_t i = 0; i < group.size(); ++i) {
      if (i == group.index) continue;
      std::vector<at::Tensor> one{bytes.narrow(0, is_send ? group.index : i, 1)};
      works.push_back(is_send ? backend.send(one, static_cast<int>(i), tag)
                              : backend.recv(one, static_cast<int>(i), tag));
    }
  for (const auto& work : works) work->wait();
}

TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places) {
  TaggedWorks works;
  for (int64_t i = 0; i < group.size(); ++i)
    if (i != group.index && places[i].numel() > 0)
      works.push_back(receive_tagged(communication, backend, bytes_of(places[i]), i));
  const at::Tensor bytes = bytes_of(own);
  for (int64_t i = 0; i < group.size() && bytes.numel() > 0; ++i)
    if (i != group.index) works.push_back(send_tagged(communication, backend, bytes, i));
  if (const at::Tensor& place = places[group.index]; !place.is_alias_of(own)) place.copy_(own.view({-1}));
  return works;
}

TaggedWorks broadcast_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                             const at::Tensor& bytes, int64_t root_index) {
  if (group.index != root_index) return {receive_tagged(communication, backend, bytes, root_index)};
  TaggedWorks works;
  for (int64_t i = 0; i < group.size(); ++i)
    if (i != root_index) works.push_back(send_tagged(communication, backend, bytes, i));
  return works;
}

TaggedWorks all_to_all_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                              const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& received,
                              const std::vector<int64_t>& sent) {
  TaggedWorks works;
  at::Tensor own_place, own_part;
  int64_t begin = 0;
  for (int64_t i = 0; i < group.size(); begin += received[i], ++i) {
    const at::Tensor part = output.narrow(0, begin, received[i]);
    if (i == group.index)
      own_place = part;
    else if (received[i] > 0)
      works.push_back(receive_tagged(communication, backend, part, i));
  }
  begin = 0;
  for (int64_t i = 0; i < group.size(); begin += sent[i], ++i) {
    const at::Tensor part = input.narrow(0, begin, sent[i]);
    if (i == group.index)
      own_part = part;
    else if (sent[i] > 0)
      works.push_back(send_tagged(communication, backend, part, i));
  }
  own_place.copy_(own_part);
  return works;
}

void reduce_rows(const at::Tensor& rows, c10d::ReduceOp::RedOpType op, const at::Tensor& result) {
  using Op = c10d::ReduceOp::RedOpType;
  at::Tensor total = result.view({-1});
  total.copy_(rows[0]);
  for (int64_t i = 1; i < rows.size(0); ++i) {
    const at::Tensor row = rows[i];
    if (op == Op::SUM)
      total.add_(row);
    else if (op == Op::PRODUCT)
      total.mul_(row);
    else if (op == Op::MIN)
      at::minimum_out(total, total, row);
    else
      at::maximum_out(total, total, row);
  }
}

}  // namespace shardwise
