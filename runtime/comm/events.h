// runtime/comm/events.h: the communications and operators of a thread as events, and readers that record them.
//
//   event      emitted by                                  kept by
//   CommEvent  Communication (communication.h)             readers; in short and always, the flight recorder (flight_recorder.h)
//   OpEvent    OpSpan (event_stream.h), in dispatch and    readers
//              in kernels
//
// The flight recorder's ring is what dumps, warnings of long waits, TrafficMeter and the live page read. Everything else reads a stream of
// events, which a thread has while a reader is open on it:
//
//   const EventReader profile(EventReader::kOperators | EventReader::kDetails);
//   ...
//   profile.operators(), profile.communications();
//
// Each reader is a range of its thread's stream. So readers nest, an outer one also sees what inner ones see, and they close in any order.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// A communication that is about to begin. Texts live as long as the program.
struct CommCall {
  const char* name;  // equal on all ranks, as are dtype, length and by_all
  std::optional<c10::ScalarType> dtype = {};
  int64_t length = -1;     // elements that every rank sends; -1 if ranks send different amounts
  int64_t bytes_sent = 0;  // by this rank, without messages to itself
  int64_t bytes_received = 0;
  const char* counted_as = nullptr;  // null: no CommTrace counts it
  bool by_all = true;                // false: members without a message may stay away, and calls are not compared
  bool says_purpose = false;         // its messages say what they are for, so they may meet those of another such call
};

/// One communication as one rank sees it. Bytes exclude messages of a rank to itself. For all_reduce both numbers are a ring's 2 (n-1)/n of
/// the tensor, the bound that backends reach. Times are nanoseconds since 1970 by this machine's clock.
struct CommEvent {
  std::string collective;  // the collective it amounts to: "all_to_all", "all_reduce", "broadcast", "all_gather"
  std::string op;          // the operator that it is for, "aten::mm" or "redistribute", or ""
  int64_t n_ranks = 0;
  std::vector<int64_t> ranks = {};  // the group's
  std::optional<c10::ScalarType> dtype = {};
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  bool is_asked_for = true;  // false: an operator moves its operands on its own
  bool is_sent = true;       // false: planned only, for tensors on meta (Group::sends)
  uint64_t number = 0;       // among the rank's communications, as in the flight recorder
  uint64_t call =
      0;  // among the group's communications, from 1; 0 if members may stay away. Planned ones are numbered by themselves
  int64_t peer = -1;         // for a message to or from one rank: its index in the group
  int64_t tag = 0;           // of such a message
  std::string layouts = {};  // of the moved tensor; "" unless details are wanted, as is source
  std::string source = {};   // the program's line; "" in a program without Python
  int64_t begin = 0;
  int64_t end = 0;     // 0 while it is under way
  int64_t waited = 0;  // time that this thread waited
  bool is_counted = false;
  bool has_failed = false;
};

/// How dispatch runs the calls of an operator with certain arguments.
struct OpDescription {
  std::string op;
  std::string rule;                       // its text, or "none: replicated"
  std::vector<std::string> given = {};    // layout of each operand; "plain" for a 0-dim torch.Tensor
  std::vector<std::string> used = {};     // the layouts under which it runs
  std::vector<std::string> results = {};  // layout of each distributed result
};

/// One call of an operator on one rank. Times are nanoseconds since 1970 by this machine's clock.
struct OpEvent {
  std::shared_ptr<const OpDescription> description;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t n_collectives = 0;
  int64_t bytes_received = 0;  // by this rank
  bool is_composite = false;   // a kernel within which operators ran that are events as well
};

struct EventStream;

/// Records the events of the thread that makes it, until stop(). Use it on that thread; after stop() any thread may read it.
class EventReader {
 public:
  /// Costs. A communication: some strings. Details: the texts of its layouts, and the lookup of the program's line. An operator: 64 bytes, and texts
  /// for arguments with new layouts. Without a reader, one thread-local word is read.
  enum Wants : uint8_t { kCommunications = 1, kOperators = 2, kDetails = 4 };

  /// `wants`: the sum of some Wants. kOperators includes kCommunications.
  explicit EventReader(int wants);
  ~EventReader() { stop(); }
  C10_DISABLE_COPY_AND_ASSIGN(EventReader);

  /// Records no further events and keeps the recorded ones. A second call does nothing.
  void stop();

  /// The communications that began while this was open and have been launched, by their begins, without those that nobody counts.
  std::vector<CommEvent> collectives() const;
  int64_t n_collectives() const;
  /// The communications that began while this was open and have ended, maybe after stop(), by their ends.
  std::vector<CommEvent> communications() const;
  int64_t n_communications() const;
  /// The operators that ended while this was open, by their ends. `with_composites`: also kernels within which others ran.
  std::vector<OpEvent> operators(bool with_composites = true) const;
  int64_t n_operators(bool with_composites = true) const;

 private:
  const uint8_t wants_;
  bool is_open_ = true;
  std::shared_ptr<EventStream> stream_;  // the thread's; after stop() one that holds this reader's range alone
  size_t first_communication_;
  size_t first_operator_;
};

/// Counts the collectives of a thread.
class CommTrace : public EventReader {
 public:
  CommTrace() : EventReader(kCommunications) {}
  std::vector<CommEvent> events() const { return collectives(); }
  int64_t total_count() const { return n_collectives(); }
  int64_t bytes_received() const { return total(&CommEvent::bytes_received); }
  int64_t bytes_sent() const { return total(&CommEvent::bytes_sent); }
  std::map<std::string, int64_t> counts() const;  // by collective

 private:
  int64_t total(int64_t CommEvent::* number) const;
};

/// Adds a collective that no Communication sends, such as one that the program calls itself, to this thread's stream. Its times are unknown: it
/// begins and ends now. `peer` and `tag`: as in CommEvent.
void add_collective(const char* collective, std::vector<int64_t> ranks, std::optional<c10::ScalarType> dtype,
                    int64_t bytes_sent, int64_t bytes_received, int64_t peer = -1, int64_t tag = 0);

/// Whether some reader on this thread wants operators. Cost: one read.
bool operators_are_read();

/// A line per operator under a heading, in aligned columns.
std::string to_string(const std::vector<OpEvent>& operators);

}  // namespace shardwise
