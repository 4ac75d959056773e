// ops/embedding/row_route.h: rows asked of the ranks that own them, each once, and gradients sent the same way back.
//
//   ids of rank 0: 7 2 7 9, rows [0, 5) on rank 0 and [5, 10) on rank 1:   asks rank 1 for 7 and 9, takes 2 from its own
//
// An id goes to every box that holds a part of its row, so rows, columns, grids and several pieces per rank are one case. What is
// sent: a message of counts to every rank, and per box the ids asked of it and their rows.
#pragma once

#include "ops/embedding/id_check.h"
#include "ops/embedding/row_kernels.h"
#include "runtime/comm/group.h"
#include "runtime/tensor/spec.h"

#include <functional>
#include <memory>
#include <vector>

namespace shardwise {

/// Ids that name rows of one of this rank's boxes, by number in the table, and their gradient rows in the box's columns.
struct BoxGrads {
  at::Tensor ids;
  RowGrads grads;
};

class RowRoute {
 public:
  /// Exchanges counts and ids along the mesh dims `asks`: among the ranks that differ in those coordinates alone. `ids`: this rank's,
  /// of any shape; they are cut along `cuts`. Collective over the mesh's members.
  /// Throws: c10::IndexError naming the worst id where `checks_ids` and one is out of range, on every rank.
  static std::shared_ptr<const RowRoute> make(const char* op, const SpecPtr& table, std::vector<bool> asks,
                                              const at::Tensor& ids, const std::vector<bool>& cuts, bool checks_ids);

  /// The same where those ranks have equal ids: each knows what the others want, and no ids are sent. give() is not for it.
  /// Throws besides, where `checks_ids`: c10::ValueError where ids differ between ranks that should have the same.
  static std::shared_ptr<const RowRoute> make_known(const char* op, const SpecPtr& table, std::vector<bool> asks,
                                                    const at::Tensor& ids, const std::vector<bool>& cuts,
                                                    bool checks_ids);

  /// This rank's ids by the rows they name; `group_of` too, -1 for rows that nobody along `asks` owns.
  const IdGroups& groups() const { return groups_; }
  /// The columns of the rows that come.
  Interval columns() const { return columns_; }

  /// The rows of groups(), [groups, columns]. Cost: each row received once.
  at::Tensor fetch(c10::ArrayRef<at::Tensor> pieces) const;

  /// The reverse: sums [groups, columns] per group go to their rows' owners. Returns what came for each of this rank's boxes.
  std::vector<BoxGrads> give(const at::Tensor& sums) const;

 private:
  /// A box of another rank or of this one, and the groups [begin, end) whose rows it holds.
  struct Ask {
    int64_t rank;
    Box box;
    int64_t begin;
    int64_t end;
    int64_t n() const { return end - begin; }
  };
  /// What `rank` asks of box `box` of this rank: ids [begin, end) of those asked of it.
  struct Order {
    int64_t rank;
    size_t box;
    int64_t begin;
    int64_t end;
    int64_t n() const { return end - begin; }
  };

  RowRoute(const SpecPtr& table, std::vector<bool> asks, const at::Tensor& ids, GroupPtr group);
  void find_asks();
  void drop_unowned();
  void exchange_counts(const char* op, const at::Tensor& ids, bool checks_ids);
  void exchange_ids();
  void check_equal(const char* op, const at::Tensor& ids, const std::vector<bool>& cuts) const;
  IdBounds bounds_of(const at::Tensor& ids) const;
  /// This rank's ask of its own box.
  const Ask& own_ask(size_t box) const;
  /// Ids travel in 32 bits where they fit.
  at::ScalarType wire_type() const;
  void look_up_own(const at::Tensor& rows, c10::ArrayRef<at::Tensor> pieces) const;
  at::Tensor place_of(const Ask& ask, const at::Tensor& rows) const;
  /// Calls `use(ask, order)` for what this rank asks of its own boxes.
  void for_each_own(const std::function<void(const Ask&, const Order&)>& use) const;
  /// Its first column among those that come.
  int64_t column_of(const Box& box) const { return box.sizes[1] == 0 ? 0 : box.offsets[1] - columns_.begin; }
  bool spans(const Box& box) const { return box.interval(1) == columns_; }

  SpecPtr table_;
  std::vector<bool> asks_along_;
  bool is_known_ = false;
  GroupPtr group_;
  IdGroups groups_;
  Interval columns_;
  std::vector<Ask> asks_;            // by the group's order of ranks
  std::vector<Order> orders_;        // likewise, this rank's own too
  std::vector<at::Tensor> ordered_;  // per box of this rank, the ids asked of it
};

}  // namespace shardwise
