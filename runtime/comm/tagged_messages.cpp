#include "runtime/comm/tagged_messages.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/memory_view.h"
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
constexpr int64_t kFanOut = 8;                 // of trees: a member sends at most 7 messages on a level
constexpr int64_t kMaxParts = 4 << 20;         // bytes; above this, a backend that reduces while it receives is faster

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
      works.push_back(
          (is_send ? send_tagged : receive_tagged)(communication, backend, bytes_of(tensor), other, std::nullopt));
    }
  return works;
}

/// The members of a group as a tree: the parent of member i is i with its last digit that is not 0 made 0, in base 8. So a member and all below it
/// are neighbours.
struct Tree {
  /// A member, and the end of those below it.
  struct Member {
    int64_t index, end;
  };
  explicit Tree(const Group& group) : own{group.index, group.size()} {
    const int64_t n = group.size();
    for (int64_t step = 1; step < n; step *= kFanOut) {
      if (own.index % (step * kFanOut) != 0) {
        parent = own.index - own.index % (step * kFanOut);
        own.end = std::min(own.index + step, n);
        return;
      }
      for (int64_t child = own.index + step; child < std::min(own.index + step * kFanOut, n); child += step)
        children.push_back({child, std::min(child + step, n)});
    }
  }

  Member own;
  int64_t parent = -1;  // the root has none
  std::vector<Member> children;
};

/// Sends `up` to the parent, after `combine()` of the children's messages, and `down`, which comes from the root, to the children. Each place is ready
/// before its message can arrive, and the two ends of a connection never write at once: Note [Messages have a thread]. `up` may be a part of `down`, which
/// arrives after the parent has all of `up`.
template <class Combine>
void pass_through(const Communication& communication, c10d::Backend& backend, const Tree& tree, const at::Tensor& up,
                  const std::vector<at::Tensor>& from_children, const Combine& combine, const at::Tensor& down,
                  std::optional<int64_t> length = std::nullopt) {
  TaggedWorks works;
  run_on_message_thread(down.device(), [&] {
    for (size_t i = 0; i < from_children.size(); ++i)
      works.push_back(
          receive_tagged(communication, backend, bytes_of(from_children[i]), tree.children[i].index, length));
    wait_for_all(works);
    works.clear();
    combine();
    if (tree.parent >= 0) {
      works.push_back(receive_tagged(communication, backend, bytes_of(down), tree.parent, length));
      works.push_back(send_tagged(communication, backend, bytes_of(up), tree.parent, length));
    }
    if (tree.children.empty()) return;  // the caller waits, so that the arrival wakes the thread that needs it
    wait_for_all(works);
    works.clear();
    for (const Tree::Member& child : tree.children)
      works.push_back(send_tagged(communication, backend, bytes_of(down), child.index, length));
    wait_for_all(works);
    works.clear();
  });
  wait_for_all(works);
}

}  // namespace

void wait_for_all(const TaggedWorks& works) {
  for (const auto& work : works) work->wait();
}

Communication::WorkPtr send_tagged(const Communication& communication, c10d::Backend& backend, const at::Tensor& bytes,
                                   int64_t other, std::optional<int64_t> length) {
  std::vector<at::Tensor> one{bytes};
  return backend.send(one, static_cast<int>(other), tag_of(communication, length.value_or(bytes.numel())));
}

Communication::WorkPtr receive_tagged(const Communication& communication, c10d::Backend& backend,
                                      const at::Tensor& bytes, int64_t other, std::optional<int64_t> length) {
  std::vector<at::Tensor> one{bytes};
  return backend.recv(one, static_cast<int>(other), tag_of(communication, length.value_or(bytes.numel())));
}

bool goes_tagged(const c10d::Backend& backend) { return !traits_of(backend).names_collectives; }

bool goes_whole(const Group& group, int64_t n_bytes) { return (group.size() - 1) * n_bytes <= kMaxSentBytes; }

bool goes_by_tree(const Group& group, int64_t n_bytes) {
  return (std::min(group.size(), kFanOut) - 1) * n_bytes <= kMaxSentBytes;
}

bool goes_doubling(const Group& group, int64_t n_bytes) {
  return n_bytes * std::bit_width(static_cast<uint64_t>(group.size() - 1)) <= kMaxDoubledBytes;
}

bool goes_in_parts(int64_t n_bytes) { return n_bytes <= kMaxParts; }

void meet_tagged(const Communication& communication, c10d::Backend& backend, const Group& group, int64_t n_bytes) {
  if (!goes_tagged(backend)) return;
  const Tree tree(group);
  const at::Tensor byte = at::empty({1}, at::kByte);
  pass_through(
      communication, backend, tree, byte, std::vector<at::Tensor>(tree.children.size(), byte), [] {}, byte, n_bytes);
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

void gather_rows(const Communication& communication, c10d::Backend& backend, const Group& group, const at::Tensor& own,
                 const at::Tensor& gathered) {
  const Tree tree(group);
  if (!own.is_alias_of(gathered)) gathered[group.index].copy_(own);
  const auto rows = [&](const Tree::Member& member) {
    return narrowed(gathered, 0, member.index, member.end - member.index);
  };
  std::vector<at::Tensor> from_children;
  for (const Tree::Member& child : tree.children) from_children.push_back(rows(child));
  pass_through(communication, backend, tree, rows(tree.own), from_children, [] {}, gathered);
}

void reduce_by_tree(const Communication& communication, c10d::Backend& backend, const Group& group,
                    const at::Tensor& total, c10d::ReduceOp::RedOpType op) {
  const Tree tree(group);
  std::vector<at::Tensor> terms;
  for (size_t i = 0; i < tree.children.size(); ++i) terms.push_back(at::empty_like(total));
  const auto combine = [&] {
    for (const at::Tensor& term : terms) accumulate(total, term, op);
  };
  pass_through(communication, backend, tree, total, terms, combine, total);
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

/// A wait that times out makes Gloo close all connections of the group; one that fails otherwise closes none.
void hang_up(const Group& group) noexcept {
  for (int other = 0; other < group.size(); ++other) try {
      const auto backend = backend_of(group, "hang up", at::kCPU);
      if (!goes_tagged(*backend)) return;
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      if (other != backend->getRank())
        backend->recv(nothing, other, kFirstMessageTag - 1)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
    }
}

std::vector<at::Tensor> rows_around(const Group& group, const at::Tensor& own) {
  auto rows = at::empty({group.size() - 1, own.numel()}, own.options()).unbind();
  rows.insert(rows.begin() + group.index, own);
  return rows;
}

void reduce_rows(int64_t index, const std::vector<at::Tensor>& rows, c10d::ReduceOp::RedOpType op,
                 const at::Tensor& result) {
  const at::Tensor& received =
      rows[index == 0 ? 1 : 0];  // holds the sum after the first step, which alone needs its value
  at::Tensor total = rows[0];
  for (size_t i = 1; i < rows.size(); ++i) {
    const at::Tensor& sum = i + 1 == rows.size() ? result : received;
    combine(sum, total, rows[i], op);
    total = sum;
  }
}

}  // namespace shardwise
