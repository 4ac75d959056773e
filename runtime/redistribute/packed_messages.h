// runtime/redistribute/packed_messages.h: sends and receives parts of tensors; the parts between two ranks share one message.
//
//   PackedMessages messages(device);
//   messages.send(2, rows.narrow(0, 4, 2));        // to rank 2
//   messages.receive(0, result.narrow(1, 0, 3));   // from rank 0, into place
//   messages.start(group);
//   ...                                            // work that does not need them
//   messages.finish();
#pragma once

#include "placements/box.h"
#include "runtime/comm/messages.h"

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace shardwise {

/// A part that a rank receives. If it is received apart, `place` is undefined and the other members describe it.
struct IncomingPart {
  at::Tensor place;
  size_t number = 0;
  Dims sizes;
  at::ScalarType dtype;
};

/// Parts of at least kLargeBytes get a message each; all smaller parts for one rank share a message. A part with a message of its own that
/// is contiguous in memory is sent from, or received into, its own memory. All others go through buffers of BufferPool. Sender and receiver
/// must add the parts in the same order, with the same sizes and dtypes. Empty parts are skipped.
class PackedMessages {
 public:
  /// From this size on, a message costs less than the copies at both ends.
  static constexpr int64_t kLargeBytes = int64_t{128} << 10;

  /// `may_change`: the parts to send may be written to after start(), so they are copied.
  explicit PackedMessages(c10::Device device, bool may_change = false) : device_(device), may_change_(may_change) {}
  /// Gives the buffers back if finish() has run.
  ~PackedMessages();
  C10_DISABLE_COPY_AND_ASSIGN(PackedMessages);

  void send(int64_t rank, at::Tensor part);
  void receive(int64_t rank, at::Tensor place);
  /// Receives into an internal buffer. Returns the number with which arrived() gives the tensor.
  size_t receive_apart(int64_t rank, c10::IntArrayRef sizes, at::ScalarType dtype);

  /// Every member of `group` must call it, even without parts. Ranks after this one are sent to first, so that
  /// not all ranks send to rank 0 at once. `by_all`, `pattern`: as in exchange().
  void start(const Group& group, bool by_all = true, const std::function<const char*()>& pattern = nullptr);
  /// Waits, and copies received parts from buffers to their places. A second call does nothing.
  void finish();
  /// Valid after finish(), during the lifetime of this object.
  const at::Tensor& arrived(size_t number) const { return apart_[number]; }

 private:
  at::Tensor buffer_of(int64_t n_bytes);
  Message packed(int64_t rank, const std::vector<at::Tensor>& parts);
  Message unpacked(int64_t rank, const std::vector<IncomingPart>& parts);

  c10::Device device_;
  bool may_change_;
  std::map<int64_t, std::vector<at::Tensor>> sends_;       // by rank
  std::map<int64_t, std::vector<IncomingPart>> receives_;  // by rank
  std::vector<at::Tensor> apart_;
  std::vector<std::function<void()>> copies_;  // from buffers to places
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<Messages> messages_;
  bool is_finished_ = false;
};

}  // namespace shardwise
