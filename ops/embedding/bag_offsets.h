// ops/embedding/bag_offsets.h: where bags of ids begin, and how bags are sharded along with their ids.
//
//   offsets 0 2 2 5 of 6 ids:   bags [0, 2) [2, 2) [2, 5) [5, 6); ids in shards of 2 and 4: bags in shards of 1 and 3
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// The offsets of all bags, equal on every rank. Ranks outside the mesh hold no bags and may not know the offsets.
class BagOffsets {
 public:
  BagOffsets() = default;
  /// Throws: c10::ValueError on all ranks if plain offsets differ between ranks. Collective.
  static void check_equal(const char* op, const at::Tensor& offsets, const MeshPtr& mesh);
  /// True if plain `offsets` are those of bags of equal lengths that hold all `n_ids` ids.
  static bool are_even(const at::Tensor& offsets, bool include_last, int64_t n_ids);
  /// `offsets`: [bags]. With `include_last` it has one more entry, where the last bag ends; ids after that are in no bag. Distributed offsets are
  /// gathered; plain ones must be a valid distributed_operand(). Plain offsets whose bags have equal lengths and hold all ids are read without that
  /// check: F.embedding_bag makes such offsets for ids of two dims.
  /// Throws: c10::ValueError, c10::TypeError for offsets that are not 1-D integers, do not ascend from 0, or exceed `n_ids`; and for other plain
  /// offsets, which may differ between ranks.
  static BagOffsets read(const char* op, const at::Tensor& offsets, bool include_last, int64_t n_ids,
                         const MeshPtr& mesh);

  /// Bags of equal lengths that hold all `n_ids` ids, as many as there are in `offsets`, whose values are not read. Throws: as read(), apart from
  /// values.
  static BagOffsets even(const char* op, const at::Tensor& offsets, bool include_last, int64_t n_ids);

  /// The number of bags.
  int64_t n() const { return n_; }
  /// The number of ids in bags: where the last bag ends.
  int64_t n_ids() const { return n_ids_; }

  /// True if every shard of the ids begins where a bag begins.
  bool fit(const Layout& ids) const;
  /// The placements of [bags, columns] for `placements` of [ids, columns]. Pre: they fit.
  Placements of_bags(const MeshPtr& mesh, Placements placements) const;
  /// The offsets of the bags in an interval of ids, relative to the interval's beginning.
  at::Tensor within(Interval ids, c10::Device device) const;

 private:
  int64_t bags_before(int64_t place) const;
  bool is_known() const { return offsets_.defined(); }

  at::Tensor offsets_;  // [bags] int64, on the CPU
  int64_t n_ = 0;
  int64_t n_ids_ = 0;
};

}  // namespace shardwise
