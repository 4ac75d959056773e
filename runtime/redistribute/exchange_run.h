// runtime/redistribute/exchange_run.h: one exchange or reduction of one or several tensors: pack, send, receive, unpack.
#pragma once

#include "plans/transfers.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <optional>

namespace shardwise {

/// One tensor's part. `from` and `to` are the specs at both ends of `step`; a rank outside of one has no pieces there.
struct ExchangeItem {
  const Step* step;
  const Transfers* part;
  SpecPtr from;
  SpecPtr to;
  Shards pieces;
};

/// The ranks that exchange.
struct Participants {
  GroupPtr group;        // null where no rank sends anything
  bool is_whole = true;  // all members of the group take part
};

/// Each pair of ranks exchanges one message a round (packed_messages.h). Pairs without common boxes exchange nothing.
class ExchangeRun {
 public:
  /// Pre: the items' steps have the same number of rounds, and are all of that participants. Every rank of the participants makes one.
  ExchangeRun(Participants participants, std::vector<ExchangeItem> items, c10::Device device);

  /// Runs all rounds but the last, whose messages are under way then. `may_change`: the items' pieces may be written to before
  /// finish(): what is sent and kept is copied.
  void start(bool may_change = false);
  /// Waits for the last round, sends nothing, and gives each item's pieces in its destination layout.
  std::vector<Shards> finish();

 private:
  struct Arrival {
    size_t item;
    const Transfer* transfer;
    std::optional<size_t> number;  // of a term that comes apart; nothing where this rank keeps it
    at::Tensor kept;               // its values, where they are secured
    bool is_stored = false;
  };

  void secure_kept(int64_t round);
  void start_round(int64_t round);
  void finish_round(int64_t round);
  void post_sends(int64_t round);
  void post_receives(int64_t round);
  /// Puts `values` into the place of a transfer, or adds them to what is there.
  void store(const Arrival& arrival, const at::Tensor& values, int64_t round);
  /// The values of `arrival`, which this rank keeps.
  at::Tensor kept_part(const Arrival& arrival, int64_t round) const;
  bool is_kept(const Arrival& arrival) const { return arrival.transfer->rank == rank_; }
  bool is_term(const Arrival& arrival) const { return items_[arrival.item].step->kind == Step::Kind::kReduce; }
  at::Tensor source_part(size_t item, int64_t piece, const Box& box) const;
  at::Tensor place_of(size_t item, const Transfer& transfer, const Box& box) const;
  Box part(const Box& box, int64_t round) const { return part_of_round(box, round, n_rounds_); }

  Participants participants_;
  std::vector<ExchangeItem> items_;
  c10::Device device_;
  int64_t n_rounds_;
  int64_t rank_;
  bool may_change_ = false;
  std::vector<Shards> results_;
  std::vector<Arrival> arrivals_;  // what is kept, and the terms of reductions; all else goes straight into its place
  std::unique_ptr<PackedMessages> messages_;
};

/// The part of `piece` (which is the box `held`) inside `box`; a view.
at::Tensor narrowed(at::Tensor piece, const Box& held, const Box& box);

/// Uninitialised memory for a piece of `sizes`, its dims ordered as the tensor's strides order them.
at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device);

}  // namespace shardwise
