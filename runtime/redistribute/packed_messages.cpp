#include "runtime/redistribute/packed_messages.h"

#include "runtime/comm/memory_view.h"
#include "runtime/redistribute/buffers.h"

#include <ATen/ops/_foreach_copy.h>

#include <cstring>

namespace shardwise {
namespace {

int64_t n_bytes_of(const at::Tensor& part) { return static_cast<int64_t>(part.nbytes()); }

int64_t n_bytes_of(const IncomingPart& part) {
  return c10::multiply_integers(part.sizes) * static_cast<int64_t>(c10::elementSize(part.dtype));
}

bool is_run(const at::Tensor& part) { return part.is_contiguous() && !part.is_conj() && !part.is_neg(); }

/// True if a copy of `part` needs no operators, which cost more than the copy of a small part.
bool is_copied_as_bytes(const at::Tensor& part) { return part.is_cpu() && is_run(part); }

/// Groups parts by message: all small parts in one, each large part in its own, so that it need not be copied. Sender and receiver group
/// alike.
template <class Part>
std::vector<std::vector<Part>> by_message(const std::vector<Part>& parts) {
  std::vector<std::vector<Part>> result;
  std::vector<Part> together;
  for (const Part& part : parts)
    if (n_bytes_of(part) < PackedMessages::kLargeBytes)
      together.push_back(part);
    else
      result.push_back({part});
  if (!together.empty()) result.push_back(std::move(together));
  return result;
}

/// Copies that are made by one operator.
class ListOfCopies {
 public:
  void add(at::Tensor to, at::Tensor from) {
    if (to.is_conj() || to.is_neg() || from.is_conj() || from.is_neg()) {
      to.copy_(from);  // torch takes no such tensors in lists
      return;
    }
    to_.push_back(std::move(to));
    from_.push_back(std::move(from));
  }
  void run() const {
    if (!to_.empty()) at::_foreach_copy_(to_, from_);
  }

 private:
  std::vector<at::Tensor> to_, from_;
};

/// The offsets of parts in a message, in bytes, each a multiple of its element size. Sender and receiver compute the same.
class Slots {
 public:
  void add(c10::IntArrayRef sizes, at::ScalarType dtype) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t offset = (n_bytes_ + element_bytes - 1) / element_bytes * element_bytes;
    slots_.push_back({offset, Dims(sizes), dtype});
    n_bytes_ = offset + c10::multiply_integers(sizes) * element_bytes;
  }
  int64_t n_bytes() const { return n_bytes_; }
  at::Tensor in(const at::Tensor& buffer, size_t i) const {
    const auto& [offset, sizes, dtype] = slots_[i];
    return memory_view(buffer, offset, sizes, dtype);
  }
  void write(const at::Tensor& part, const at::Tensor& buffer, size_t i, ListOfCopies& others) const {
    if (is_copied_as_bytes(part))
      std::memcpy(buffer.mutable_data_ptr<uint8_t>() + slots_[i].offset, part.const_data_ptr(), part.nbytes());
    else
      others.add(in(buffer, i), part);
  }
  void read(const at::Tensor& buffer, size_t i, const at::Tensor& place, ListOfCopies& others) const {
    if (is_copied_as_bytes(place))
      std::memcpy(place.mutable_data_ptr(), buffer.const_data_ptr<uint8_t>() + slots_[i].offset, place.nbytes());
    else
      others.add(place, in(buffer, i));
  }

 private:
  struct Slot {
    int64_t offset;
    Dims sizes;
    at::ScalarType dtype;
  };
  std::vector<Slot> slots_;
  int64_t n_bytes_ = 0;
};

}  // namespace

PackedMessages::~PackedMessages() {
  if (!is_finished_) return;  // messages that failed or are in flight may still use the buffers
  for (const at::Tensor& buffer : buffers_) BufferPool::of_thread().give_back(buffer);
}

void PackedMessages::send(int64_t rank, at::Tensor part) {
  if (part.numel() > 0) sends_[rank].push_back(std::move(part));
}

void PackedMessages::receive(int64_t rank, at::Tensor place) {
  if (place.numel() == 0) return;
  IncomingPart part{place, 0, Dims(place.sizes()), place.scalar_type()};
  receives_[rank].push_back(std::move(part));
}

size_t PackedMessages::receive_apart(int64_t rank, c10::IntArrayRef sizes, at::ScalarType dtype) {
  apart_.emplace_back();
  if (c10::multiply_integers(sizes) > 0)
    receives_[rank].push_back({{}, apart_.size() - 1, Dims(sizes), dtype});
  else
    apart_.back() = buffer_of(0).view(dtype).view(sizes);
  return apart_.size() - 1;
}

at::Tensor PackedMessages::buffer_of(int64_t n_bytes) {
  return buffers_.emplace_back(BufferPool::of_thread().take(n_bytes, device_));
}

Message PackedMessages::packed(int64_t rank, const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1 && !may_change_ && is_run(parts[0])) return {rank, parts[0]};
  Slots slots;
  for (const at::Tensor& part : parts) slots.add(part.sizes(), part.scalar_type());
  at::Tensor buffer = buffer_of(slots.n_bytes());
  return {rank, buffer, [parts, buffer, slots = std::move(slots)] {
            ListOfCopies others;
            for (size_t i = 0; i < parts.size(); ++i) slots.write(parts[i], buffer, i, others);
            others.run();
          }};
}

Message PackedMessages::unpacked(int64_t rank, const std::vector<IncomingPart>& parts) {
  if (parts.size() == 1 && parts[0].place.defined() && is_run(parts[0].place)) return {rank, parts[0].place};
  Slots slots;
  for (const IncomingPart& part : parts) slots.add(part.sizes, part.dtype);
  at::Tensor buffer = buffer_of(slots.n_bytes());
  for (size_t i = 0; i < parts.size(); ++i)
    if (!parts[i].place.defined()) apart_[parts[i].number] = slots.in(buffer, i);
  copies_.emplace_back([parts, buffer, slots = std::move(slots)] {
    ListOfCopies others;
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].place.defined()) slots.read(buffer, i, parts[i].place, others);
    others.run();
  });
  return {rank, buffer};
}

void PackedMessages::start(const Group& group, bool by_all, const std::function<const char*()>& pattern) {
  std::vector<Message> sends, receives;
  const int64_t own = group.ranks[group.index];
  const auto receive = [&](auto begin, auto end) {
    for (auto it = begin; it != end; ++it)
      for (const auto& parts : by_message(it->second)) receives.push_back(unpacked(it->first, parts));
  };
  const auto send = [&](auto begin, auto end) {
    for (auto it = begin; it != end; ++it)
      for (const auto& parts : by_message(it->second)) sends.push_back(packed(it->first, parts));
  };
  // From the neighbours on, upwards and downwards, so that not all ranks begin with the same one.
  send(sends_.upper_bound(own), sends_.end());
  send(sends_.begin(), sends_.upper_bound(own));
  receive(std::make_reverse_iterator(receives_.lower_bound(own)), receives_.rend());
  receive(receives_.rbegin(), std::make_reverse_iterator(receives_.lower_bound(own)));
  messages_ = exchange(group, device_, std::move(sends), std::move(receives), by_all, pattern);
}

void PackedMessages::finish() {
  if (messages_) messages_->wait();
  is_finished_ = true;
  for (const auto& copy : copies_) copy();
  copies_.clear();
}

}  // namespace shardwise
