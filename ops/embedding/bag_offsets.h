// ops/embedding/bag_offsets.h: where bags of ids begin, and how bags are sharded along with their ids.
//
//   offsets 0 2 2 5 of 6 ids:   bags [0, 2) [2, 2) [2, 5) [5, 6); ids in shards of 2 and 4: bags in shards of 1 and 3
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// The offsets of all bags, equal on every rank. (Ranks outside the mesh may not know them: they hold no bags.)
class BagOffsets {
 public:
  BagOffsets() = default;
  /// `offsets`: [bags], with `include_last` one more that says where the last bag ends (ids behind it are in none); distributed, then they
  /// are gathered, or a distributed_operand() by itself. Plain ones are read as they are where their bags are of one length and hold all
  /// ids: those that F.embedding_bag makes for ids of two dims.
  /// Throws: c10::ValueError, c10::TypeError where they are not 1-D integers that ascend from 0 and stay within `n_ids`, and for other
  /// plain ones, which may be each rank's own.
  static BagOffsets read(const char* op, const at::Tensor& offsets, bool include_last, int64_t n_ids,
                         const MeshPtr& mesh);

  /// How many bags.
  int64_t n() const { return n_; }
  /// How many ids the bags hold: the last bag ends here.
  int64_t n_ids() const { return n_ids_; }

  /// True where every shard of the ids begins with a bag.
  bool fit(const Layout& ids) const;
  /// The placements of [bags, columns] for `placements` of [ids, columns]. Pre: they fit.
  Placements of_bags(const MeshPtr& mesh, Placements placements) const;
  /// The offsets of the bags of the ids in an interval, counted from its beginning.
  at::Tensor within(Interval ids, c10::Device device) const;

 private:
  int64_t bags_before(int64_t place) const;
  bool is_known() const { return offsets_.defined(); }

  at::Tensor offsets_;  // [bags] int64, on the CPU
  int64_t n_ = 0;
  int64_t n_ids_ = 0;
};

}  // namespace shardwise
