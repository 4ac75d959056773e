// wrappers/embedding_plan/table_slice.h: the plan of one table: its treatment and its slices. Pure.
//
//   [1000, 64] table-parallel in two slices:   rank 3 columns [0,32)    rank 1 columns [32,64)
//   [10, 64] row-parallel on 4 ranks:          rows [0,3) [3,6) [6,8) [8,10)
#pragma once

#include "placements/box.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise {

enum class Treatment : uint8_t {
  kReplicated,     // whole on every rank (data-parallel)
  kTableParallel,  // whole columns on some ranks: one slice, or several of columns
  kRowParallel,    // rows over all ranks
};

/// "replicated", "table-parallel", "row-parallel".
std::string_view to_string(Treatment treatment);
/// The reverse. Throws: c10::ValueError listing the three names.
Treatment treatment_from_string(std::string_view name);

/// A box of one table on one rank, and its place in its group there.
struct TableSlice {
  size_t table = 0;  // index into EmbeddingPlan::tables
  int64_t rank = 0;  // in [0, n_ranks)
  Interval rows;     // of the table
  Interval columns;
  size_t group = 0;       // index into RankEmbeddings::groups of `rank`
  int64_t first_row = 0;  // the slice's offset in the group's rows, which is added to its ids (D5)

  bool operator==(const TableSlice&) const = default;
};

/// The slices of one table, with the interface of a vector. The slices of a replicated table differ only in the rank, so only one is stored: for
/// 10,000 tables on 4,096 ranks all of them would take gigabytes.
class SliceList {
 public:
  SliceList() = default;
  SliceList(std::vector<TableSlice> slices) : slices_(std::move(slices)) {}
  SliceList(std::initializer_list<TableSlice> slices) : slices_(slices) {}
  /// `slice` on each rank in [0, n_ranks), at the same place of the same group.
  static SliceList on_every_rank(const TableSlice& slice, int64_t n_ranks) {
    SliceList list({slice});
    list.n_ranks_ = n_ranks;
    return list;
  }

  size_t size() const { return n_ranks_ > 0 ? static_cast<size_t>(n_ranks_) : slices_.size(); }
  bool empty() const { return size() == 0; }
  TableSlice operator[](size_t i) const {
    if (n_ranks_ == 0) return slices_[i];
    TableSlice slice = slices_[0];
    slice.rank = static_cast<int64_t>(i);
    return slice;
  }
  TableSlice front() const { return (*this)[0]; }
  TableSlice back() const { return (*this)[size() - 1]; }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = TableSlice;
    using difference_type = std::ptrdiff_t;
    using pointer = const TableSlice*;
    using reference = TableSlice;

    Iterator(const SliceList* list, size_t at) : list_(list), at_(at) {}
    TableSlice operator*() const { return (*list_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    void operator++(int) { ++at_; }
    bool operator==(const Iterator&) const = default;

   private:
    const SliceList* list_;
    size_t at_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  bool operator==(const SliceList&) const = default;

 private:
  std::vector<TableSlice> slices_;
  int64_t n_ranks_ = 0;  // above 0: slices_[0] is on that many ranks
};

struct TablePlan {
  Treatment treatment = Treatment::kReplicated;
  /// By first row, then first column. A replicated table has one per rank.
  SliceList slices;
  std::string reason;  // one sentence: why this treatment

  bool operator==(const TablePlan&) const = default;
};

/// Part `index` of `n_parts` of [0, length): the first (length mod n_parts) parts are one longer. 10 in 4 is 3, 3, 2, 2.
inline Interval balanced_part(int64_t length, int64_t n_parts, int64_t index) {
  const int64_t least = length / n_parts, n_longer = length % n_parts;
  const auto begin = [&](int64_t i) { return i * least + std::min(i, n_longer); };
  return {begin(index), begin(index + 1)};
}

}  // namespace shardwise
