#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace shardwise {
namespace {

// Each rank sends its bytes to each: for more ranks, or more bytes, a ring or a tree sends less.
constexpr int64_t kMaxRanks = 16;
constexpr int64_t kMaxBytes = 1024;

int tag_of(const Communication& communication, const at::Tensor& bytes) {
  const auto bits = static_cast<int>(communication.fingerprint(bytes.numel()) & (kFirstMessageTag - 1));
  return kFirstMessageTag | bits;
}

}  // namespace

Communication::WorkPtr send_tagged(const Communication& communication, c10d::Backend& backend, const at::Tensor& bytes,
                                   int64_t other) {
  std::vector<at::Tensor> one{bytes};
  return backend.send(one, static_cast<int>(other), tag_of(communication, bytes));
}

Communication::WorkPtr receive_tagged(const Communication& communication, c10d::Backend& backend,
                                      const at::Tensor& bytes, int64_t other) {
  std::vector<at::Tensor> one{bytes};
  return backend.recv(one, static_cast<int>(other), tag_of(communication, bytes));
}

bool goes_tagged(const c10d::Backend& backend, const Group& group, int64_t n_bytes) {
  return n_bytes <= kMaxBytes && group.size() <= kMaxRanks && !traits_of(backend).names_collectives;
}

TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const at::Tensor& rows) {
  TaggedWorks works;
  const at::Tensor bytes = bytes_of(own);
  for (int64_t i = 0; i < group.size(); ++i)
    if (i != group.index) works.push_back(receive_tagged(communication, backend, bytes_of(rows.select(0, i)), i));
  for (int64_t i = 0; i < group.size(); ++i)
    if (i != group.index) works.push_back(send_tagged(communication, backend, bytes, i));
  rows.select(0, group.index).copy_(own.view({-1}));
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
