// wrappers/id_transform/id_exchange.h: sends ids to the ranks that know them, each distinct id once per rank, and gets rows back.
//
//   IdExchange exchange(group, owners, ids);
//   exchange.send_headers({step});                  // the numbers of every member, to all members
//   const IdUses uses = exchange.send_ids(true);    // the requests of all members to this one
//   exchange.send_rows(rows_of(uses.ids), {});
//   exchange.rows();                                // the rows of this rank's ids, in the order of the ids
#pragma once

#include "ops/embedding/id_rows.h"
#include "runtime/comm/group.h"

#include <vector>

namespace shardwise {

/// The member of a group that knows each id.
struct IdOwners {
  kernels::IdBuckets buckets;
  std::vector<int64_t> first_bucket;  // by place, ascending; one more entry than places
  std::vector<int64_t> member_at;     // index in the group, by place

  int64_t member_of(int64_t id) const;
  Interval rows_at(int64_t place) const {
    return {buckets.first_row(first_bucket[place]), buckets.first_row(first_bucket[place + 1])};
  }
};

/// One list of numbers per member of the group.
using NumbersByMember = std::vector<std::vector<int64_t>>;

/// The three exchanges are called in the order below, on all members. Each sends one message per pair of ranks.
class IdExchange {
 public:
  /// `ids`: this rank's, int64 [n] on the CPU. Pre: `group` outlives this object.
  IdExchange(const Group& group, const IdOwners& owners, const at::Tensor& ids);

  /// Sends each member `numbers` and the number of ids that it will receive. Returns all members' numbers. Pre: equally many numbers on all members.
  NumbersByMember send_headers(const std::vector<int64_t>& numbers);

  /// Returns the distinct ids that arrive, and for each the sum of its counts; counts are undefined unless `with_counts`. This rank's ids count as 0
  /// unless `counts_here`.
  IdUses send_ids(bool with_counts, bool counts_here = true);

  /// `rows`: int64, the rows of the ids that send_ids() returned. Returns all members' `numbers`, as send_headers().
  NumbersByMember send_rows(const at::Tensor& rows, const std::vector<int64_t>& numbers);

  /// The rows of the ids passed to the constructor, [n].
  at::Tensor rows() const;

 private:
  const Group& group_;
  at::Tensor wanted_;          // distinct ids, by member
  at::Tensor counts_;          // of wanted_
  at::Tensor place_of_;        // [n]: positions in wanted_
  std::vector<int64_t> n_to_;  // per member
  std::vector<int64_t> n_from_;
  at::Tensor place_of_incoming_;  // positions in the result of send_ids(); undefined if that is in order of arrival
  at::Tensor found_;              // rows of wanted_
};

}  // namespace shardwise
