// runtime/redistribute/exchange_run.h: one exchange or reduction of one or several tensors: pack, send, receive, unpack.
#pragma once

#include "plans/transfers.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <optional>

namespace shardwise {

/// One tensor's part. `from` and `to` are the specs before and after `step`. A rank outside of one of their meshes has no pieces there.
struct ExchangeItem {
  const Step* step;
  const Transfers* part;
  SpecPtr from;
  SpecPtr to;
  Shards pieces;
  int64_t row_bytes = 0;  // OwnStep::row_bytes
};

/// The ranks that take part in an exchange.
struct Participants {
  GroupPtr group;        // null if no rank sends anything
  bool is_whole = true;  // all members of the group take part
};

/// Each pair of ranks exchanges one message per round (packed_messages.h). Pairs without common boxes exchange none.
///
/// Where log2(n) messages of more bytes take less time (OwnStep::row_bytes), run() gathers all ranks' pieces, or all-reduces them, and takes this
/// rank's part. start() never does, because it must not wait.
class ExchangeRun {
 public:
  /// Pre: the items' steps have the same number of rounds and the same participants. Every participant must construct one.
  ExchangeRun(Participants participants, std::vector<ExchangeItem> items, c10::Device device);

  /// Runs all rounds, and returns each item's pieces in its destination layout.
  std::vector<Shards> run();

  /// Runs all rounds but the last, and starts the last one. `may_change`: the items' pieces may be written to before finish(), so values
  /// that are sent or kept are copied.
  void start(bool may_change = false);
  /// Waits for the last round without sending anything, and returns each item's pieces in its destination layout.
  std::vector<Shards> finish();

 private:
  struct Arrival {
    size_t item;
    const Transfer* transfer;
    std::optional<size_t> number;  // of a term received into its own buffer; nothing if this rank has it
    at::Tensor kept;               // a copy of the kept values, once made
    bool is_stored = false;
  };

  void gather();
  void reduce_whole();
  void secure_kept(int64_t round);
  void start_round(int64_t round);
  void finish_round(int64_t round);
  void post_sends(int64_t round);
  void post_receives(int64_t round);
  /// Writes `values` to the transfer's place, or combines them with the values there.
  void store(const Arrival& arrival, const at::Tensor& values, int64_t round);
  /// The values of `arrival`, which this rank already has.
  at::Tensor kept_part(const Arrival& arrival, int64_t round) const;
  bool is_kept(const Arrival& arrival) const { return arrival.transfer->rank == rank_; }
  bool is_term(const Arrival& arrival) const { return items_[arrival.item].step->combines_terms(); }
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
  std::vector<Arrival> arrivals_;  // kept parts and reduction terms; other parts are received in place
  std::unique_ptr<PackedMessages> messages_;
};

/// The part of `piece` inside `box`, as a view. `held` is the box of `piece`.
at::Tensor narrowed(at::Tensor piece, const Box& held, const Box& box);

/// The part of `tensor` that matches `box` of an operator's result. Dims are aligned to the right; broadcast dims stay whole.
at::Tensor narrowed_to(at::Tensor tensor, const Box& box);
/// Uninitialised memory for a piece of `sizes`, with its dims in the order of the tensor's strides.
at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device);

}  // namespace shardwise
