// runtime/redistribute/packed_messages.h: parts of tensors sent and received; those between two ranks travel in one message.
//
//   PackedMessages messages(device);
//   messages.send(2, rows.narrow(0, 4, 2));        // to rank 2
//   messages.receive(0, result.narrow(1, 0, 3));   // from rank 0, into its place
//   messages.start(group);
//   ...                                            // work that needs none of them
//   messages.finish();
#pragma once

#include "placements/box.h"
#include "runtime/comm/messages.h"

#include <map>
#include <memory>
#include <vector>

namespace shardwise {

/// What a rank receives. `place` is undefined where there is none: then the rest says what comes, and where it is noted.
struct IncomingPart {
  at::Tensor place;
  size_t number = 0;
  Dims sizes;
  at::ScalarType dtype;
};

/// Parts of at least kLargeBytes travel in messages of their own, all others of one rank in one. A part that travels alone and is one run of
/// elements in memory is sent, or received, where it lies. All others go through buffers of BufferPool. Sender and receiver must add
/// the parts in the same order, with the same sizes and dtypes. Empty parts are left out.
class PackedMessages {
 public:
  /// From here on a message costs less than the copies at both of its ends.
  static constexpr int64_t kLargeBytes = int64_t{128} << 10;

  /// `may_change`: what is sent may be written to after start(), so it is copied.
  explicit PackedMessages(c10::Device device, bool may_change = false) : device_(device), may_change_(may_change) {}
  /// Gives the buffers back after finish().
  ~PackedMessages();
  PackedMessages(const PackedMessages&) = delete;
  PackedMessages& operator=(const PackedMessages&) = delete;

  void send(int64_t rank, at::Tensor part);
  void receive(int64_t rank, at::Tensor place);
  /// Receives into an internal buffer; read it with arrived(n), where n is what this returns.
  size_t receive_apart(int64_t rank, c10::IntArrayRef sizes, at::ScalarType dtype);

  /// Every member of `group` calls it, those without a part too; `by_all` as in exchange(). The ranks after this one are sent to first, so
  /// that not all send to rank 0 at once.
  void start(const Group& group, bool by_all = true);
  /// Waits, and copies to its place what came through a buffer.
  void finish();
  /// Valid after finish(), while this lives.
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
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // (slot, place)
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<Messages> messages_;
  bool is_finished_ = false;
};

}  // namespace shardwise
