// ops/embedding/row_exchange.h: requests rows from the ranks that own them, each row once, and sends gradients back the same way.
//
//   ids of rank 0: 7 2 7 9, rows [0, 5) on rank 0 and [5, 10) on rank 1:   requests 7 and 9 from rank 1, takes 2 from its own rows
//
// An id is requested from every box that holds a part of its row, so tables sharded by rows, by columns, on grids and in several
// pieces per rank are one case. Messages: counts to every rank, then per box the requested ids, then their rows.
#pragma once

#include "ops/embedding/id_check.h"
#include "ops/embedding/row_kernels.h"
#include "runtime/comm/group.h"
#include "runtime/tensor/spec.h"

#include <functional>
#include <vector>

namespace shardwise {

/// Ids of rows in one of this rank's boxes, numbered as in the whole table, and their gradient rows in the box's columns.
struct BoxGrads {
  at::Tensor ids;
  RowGrads grads;
};

/// Gradient rows of one of this rank's boxes, grouped by row of the box.
struct BoxGroups {
  IdGroups groups;
  RowGrads grads;
};

class PlannedIds;

class RowExchange {
 public:
  /// Exchanges counts and ids among the ranks that differ only along the mesh dims `along`. `ids`: this rank's part of `all_ids`, of any
  /// shape. Collective over the mesh's members.
  /// Throws: with `checks_ids`, on every rank, c10::IndexError naming the worst id if one is out of range.
  static RowExchange make(const char* op, const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                          const Spec& all_ids, bool checks_ids);

  /// The same if those ranks have equal ids (check_equal()): each rank knows the requests of the other ranks, and nothing is sent.
  /// scatter_gradients() cannot be called.
  static RowExchange make_of_equal_ids(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids);

  /// Returns the entries of `per_id` [ids] for the ids that `rank` wants.
  using PartOf = std::function<at::Tensor(int64_t rank, const at::Tensor& per_id)>;
  /// An exchange for ids that are equal on all ranks, in which each rank wants the rows of a part of them; this rank wants those of `ids`. Sends
  /// nothing. `own`: all ids, grouped by row, for each of this rank's boxes.
  static RowExchange make_of_parts(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                                   c10::ArrayRef<IdGroups> own, const PartOf& part_of);

  /// Checks that ids are equal on the ranks that replicate them. Cost: a message of a few numbers between all members, which CommTrace leaves out.
  /// Throws: c10::IndexError as make(), and c10::ValueError if such ids differ.
  static void check_equal(const char* op, const Spec& table, const at::Tensor& ids, const Spec& all_ids);

  /// This rank's ids, grouped by row. `group_of` is -1 for ids whose row no rank of the exchange owns.
  const IdGroups& groups() const { return groups_; }
  /// The columns of the rows that arrive.
  Interval columns() const { return columns_; }

  /// Fetches the rows of groups(), [groups, columns]. Each row is received once.
  at::Tensor fetch(c10::ArrayRef<at::Tensor> pieces) const;

  /// fetch() for exchanges made by make_of_equal_ids() or make_of_parts(). `own_rows`: the rows that the ids name in each of this rank's boxes,
  /// [groups, columns of the box].
  at::Tensor fetch_kept(c10::ArrayRef<at::Tensor> own_rows) const;

  /// fetch() for packed `pieces` (packed_rows.h). Rows are sent packed and unpacked on arrival.
  at::Tensor fetch_packed(c10::ArrayRef<at::Tensor> pieces) const;

  /// The reverse of fetch(): sends the gradient sums [groups, columns], one per group, to the owners of the rows. Returns the gradients that arrive
  /// for each of this rank's boxes.
  std::vector<BoxGrads> scatter_gradients(const at::Tensor& sums) const;

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    groups_.for_each_tensor(visit);
    for (std::vector<at::Tensor>* of_boxes : {&incoming_ids_, &incoming_places_})
      for (at::Tensor& each : *of_boxes) visit(each);
  }

 private:
  /// The groups [begin, end), whose rows lie in `box` of `rank` (perhaps this rank).
  struct Request {
    int64_t rank;
    Box box;
    int64_t begin;
    int64_t end;
    int64_t n() const { return end - begin; }
  };
  /// The ids that `rank` requests from box `box` of this rank: [begin, end) of incoming_ids_[box].
  struct IncomingRequest {
    int64_t rank;
    size_t box;
    int64_t begin;
    int64_t end;
    int64_t n() const { return end - begin; }
  };

  RowExchange(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids, GroupPtr group);
  void find_requests();
  void drop_unowned();
  void exchange_counts(const char* op, const at::Tensor& ids, const Spec& all_ids, bool checks_ids);
  /// The number of rows that `ids` name in each of this rank's boxes.
  std::vector<int64_t> counts_of(const PlannedIds& ids) const;
  void exchange_ids();
  IdBounds bounds_of(const at::Tensor& ids) const;
  /// This rank's request to its own box.
  const Request& own_request(size_t box) const;
  /// The dtype of ids in messages: 32 bits if row numbers fit.
  at::ScalarType id_dtype() const;
  /// Writes the rows that an incoming request names into `rows`.
  using FindRows = std::function<void(const IncomingRequest& incoming, const at::Tensor& rows)>;
  /// `find` writes the rows to send. If it writes packed rows, `unpacked` writes the values of this rank's own rows.
  at::Tensor fetch_by(const FindRows& find, const FindRows& unpacked = {}) const;
  /// The part of `rows` [groups, columns] that a request names.
  at::Tensor part_of(const Request& request, const at::Tensor& rows) const;
  /// The ids that an incoming request names.
  at::Tensor ids_of(const IncomingRequest& incoming) const;
  /// Calls `use(request, incoming)` for each request of this rank to one of its own boxes.
  void for_each_own(const std::function<void(const Request&, const IncomingRequest&)>& use) const;
  /// The box's first column, relative to columns().
  int64_t column_of(const Box& box) const { return box.sizes[1] == 0 ? 0 : box.offsets[1] - columns_.begin; }
  bool spans(const Box& box) const { return box.interval(1) == columns_; }

  SpecPtr table_;
  std::vector<bool> along_;
  bool ids_are_equal_ = false;
  GroupPtr group_;
  IdGroups groups_;
  Interval columns_;
  std::vector<Request> requests_;            // in the group's order of ranks, requests to this rank's boxes included
  std::vector<IncomingRequest> incoming_;    // likewise
  std::vector<at::Tensor> incoming_ids_;     // per box of this rank
  std::vector<at::Tensor> incoming_places_;  // for make_of_parts(): the groups of the box that incoming_ids_ name
};

}  // namespace shardwise
