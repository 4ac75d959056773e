// ops/embedding/row_exchange.h: rows requested from the ranks that own them, each once, and gradients sent back the same way.
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

class RowExchange {
 public:
  /// Exchanges counts and ids among the ranks that differ only along the mesh dims `along`. `ids`: this rank's, of any shape, sharded
  /// along the mesh dims `id_shards`. Collective over the mesh's members.
  /// Throws: c10::IndexError naming the worst id where `checks_ids` and one is out of range, on every rank.
  static RowExchange make(const char* op, const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                          const std::vector<bool>& id_shards, bool checks_ids);

  /// The same where those ranks have equal ids (check_equal()): each knows the others' requests, and nothing is sent. Gradients cannot be
  /// scattered.
  static RowExchange make_of_equal_ids(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids);

  /// The numbers of `per_id` [ids] for the ids that `rank` wants.
  using PartOf = std::function<at::Tensor(int64_t rank, const at::Tensor& per_id)>;
  /// The exchange in which each rank wants the rows of a part of equal ids only, this rank those of `ids`. Nothing is sent. `own`: all ids,
  /// grouped by row of each of this rank's boxes.
  static RowExchange make_of_parts(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                                   c10::ArrayRef<IdGroups> own, const PartOf& part_of);

  /// A message of a few numbers between all members, which CommTrace leaves out. Throws: c10::IndexError as make(), and c10::ValueError where ids differ between ranks
  /// that must have the same.
  static void check_equal(const char* op, const Spec& table, const at::Tensor& ids, const std::vector<bool>& id_shards);

  /// This rank's ids by the rows they name, with `group_of`: -1 for rows that no rank of the exchange owns.
  const IdGroups& groups() const { return groups_; }
  /// The columns of the rows that arrive.
  Interval columns() const { return columns_; }

  /// The rows of groups(), [groups, columns]. Each row is received once.
  at::Tensor fetch(c10::ArrayRef<at::Tensor> pieces) const;

  /// fetch() of an exchange of equal ids or of parts of them. `own_rows`: those that these ids name in each box, [groups, columns of the box].
  at::Tensor fetch_kept(c10::ArrayRef<at::Tensor> own_rows) const;

  /// fetch() of packed rows (packed_rows.h): `pieces` are packed, rows are sent so, and are unpacked where they arrive.
  at::Tensor fetch_packed(c10::ArrayRef<at::Tensor> pieces) const;

  /// The reverse: sends the sums [groups, columns] per group to their rows' owners. Returns what arrives for each of this rank's boxes.
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
  /// What `rank` requests from box `box` of this rank: the ids [begin, end) of incoming_ids_[box].
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
  void exchange_counts(const char* op, const at::Tensor& ids, bool checks_ids);
  void exchange_ids();
  IdBounds bounds_of(const at::Tensor& ids) const;
  /// This rank's request to its own box.
  const Request& own_request(size_t box) const;
  /// Of ids in messages: 32 bits where they fit.
  at::ScalarType id_dtype() const;
  /// Writes the rows that a request names into `rows`, which is the request's.
  using FindRows = std::function<void(const IncomingRequest& incoming, const at::Tensor& rows)>;
  /// `unpacked`: where `find` gives packed rows, which then are sent so; gives values.
  at::Tensor fetch_by(const FindRows& find, const FindRows& unpacked = {}) const;
  /// The part of `rows` [groups, columns] that a request names.
  at::Tensor part_of(const Request& request, const at::Tensor& rows) const;
  /// The ids that an incoming request names.
  at::Tensor ids_of(const IncomingRequest& incoming) const;
  /// Calls `use(request, incoming)` for what this rank requests from its own boxes.
  void for_each_own(const std::function<void(const Request&, const IncomingRequest&)>& use) const;
  /// The box's first column, counted from the first that arrives.
  int64_t column_of(const Box& box) const { return box.sizes[1] == 0 ? 0 : box.offsets[1] - columns_.begin; }
  bool spans(const Box& box) const { return box.interval(1) == columns_; }

  SpecPtr table_;
  std::vector<bool> along_;
  bool ids_are_equal_ = false;
  GroupPtr group_;
  IdGroups groups_;
  Interval columns_;
  std::vector<Request> requests_;            // in the group's order of ranks, this rank's own too
  std::vector<IncomingRequest> incoming_;    // likewise
  std::vector<at::Tensor> incoming_ids_;     // per box of this rank
  std::vector<at::Tensor> incoming_places_;  // of parts of equal ids: which of the box's groups incoming_ids_ are
};

}  // namespace shardwise
