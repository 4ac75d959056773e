// wrappers/id_transform/id_exchange.h: ids go to the ranks that know them, each once per rank, and rows come back.
//
//   IdExchange exchange(group, owners, ids);
//   exchange.send_headers({step});                  // every member's numbers, to all members
//   const IdUses uses = exchange.send_ids(true);    // what all members ask of this one
//   exchange.send_rows(rows_of(uses.ids), {});
//   exchange.rows();                                // of this rank's ids, in their order
#pragma once

#include "ops/embedding/id_rows.h"
#include "runtime/comm/group.h"

#include <vector>

namespace shardwise {

/// Which member of a group knows an id.
struct IdOwners {
  kernels::IdBuckets buckets;
  std::vector<int64_t> first_bucket;  // by place; ascending; one more than places
  std::vector<int64_t> member_at;     // its index in the group, by place

  int64_t member_of(int64_t id) const;
  Interval rows_at(int64_t place) const {
    return {buckets.first_row(first_bucket[place]), buckets.first_row(first_bucket[place + 1])};
  }
};

/// One list of numbers per member of the group.
using NumbersByMember = std::vector<std::vector<int64_t>>;

/// The three exchanges come in the order written, on all members. Each sends one message per pair of ranks.
class IdExchange {
 public:
  /// `ids`: this rank's, int64 [n] on the CPU. The references are kept.
  IdExchange(const Group& group, const IdOwners& owners, const at::Tensor& ids);

  /// Tells each member how many ids it will be sent, and `numbers`. Returns all members' numbers. Pre: as many on all members.
  NumbersByMember send_headers(const std::vector<int64_t>& numbers);

  /// Returns what arrives, each id once, with the sum of its counts: undefined unless `with_counts`. This rank's ids count
  /// as 0 unless `counts_here`.
  IdUses send_ids(bool with_counts, bool counts_here = true);

  /// `rows`: int64, of the ids that send_ids() returned. Returns all members' `numbers`, as send_headers().
  NumbersByMember send_rows(const at::Tensor& rows, const std::vector<int64_t>& numbers);

  /// Of the ids given to the constructor, [n].
  at::Tensor rows() const;

 private:
  const Group& group_;
  at::Tensor wanted_;          // each id once, by member
  at::Tensor counts_;          // of wanted_
  at::Tensor place_of_;        // [n]: in wanted_
  std::vector<int64_t> n_to_;  // per member
  std::vector<int64_t> n_from_;
  at::Tensor place_of_incoming_;  // among the ids that send_ids() returned; undefined where they are those that arrived
  at::Tensor found_;              // rows of wanted_
};

}  // namespace shardwise
