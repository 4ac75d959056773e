// ops/support/planned_values.h: the values that operators on meta are planned for, where messages depend on values that meta tensors do not have.
//
// Values follow an IdModel. Without one, the n ids of a rank are spread evenly over the N rows of a table: id k is row k * N / n, rounded down.
// Choices of experts go round: choice k is of expert k mod N. Rows of groups are spread evenly over the groups.
//
//   4 ids, 10 rows, spread evenly:   0 2 5 7; rows [0, 3) on the first of three ranks have two of them
//
// With a model, row k of a table has a share of the ids, expert k that share of the choices, and group k that share of the rows. Ids count as drawn
// independently, so n ids name 1 - (1 - share)^n of a row in the mean.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace shardwise {

/// The shares of rows, experts and groups: equal; Zipf's law, (k + 1)^-exponent for row k; or a histogram, whose m weights are those of m equal
/// ranges of the rows.
using IdModel = std::variant<std::monostate, double, std::vector<double>>;

/// From now on, ids are planned by this model. Pre: the exponent is not negative; weights are not negative, and some are positive.
void plan_ids(IdModel model);

/// True if there is a model.
bool has_id_model();

/// Notes the layout of a table or of experts for which ids are planned.
void note_planned(const Spec& rows);
/// The layouts that were noted since plan_ids(). Some may have ended.
const std::set<const Spec*>& planned_tables();

/// The `n_ids` ids of rows in `among`, or of all `n_rows` rows of a table.
class PlannedIds {
 public:
  /// Throws: c10::ValueError if the histogram has more weights than there are rows. Cost: about a microsecond per weight of the histogram; for Zipf's
  /// law, per 1.6 % of the rows.
  PlannedIds(int64_t n_ids, int64_t n_rows, std::optional<Interval> among = {});

  int64_t n() const { return n_; }
  /// The number of rows in [0, row) that ids name.
  int64_t rows_below(int64_t row) const;
  /// The share of the ids that name a row in [0, row).
  double share_below(int64_t row) const;
  /// The ids, int64 on the CPU, ascending.
  at::Tensor ids() const;

 private:
  /// Sums over the rows of `among` below `row`. Between two marks, the sums grow evenly.
  struct Mark {
    double row, share, named;
  };
  double at(double Mark::* known, double value, double Mark::* wanted) const;

  int64_t n_;
  Interval rows_;
  std::vector<Mark> marks_;  // empty: spread evenly
};

/// `n` rows of `n_rows`, each once, spread evenly: int64 on the CPU.
inline at::Tensor spread_rows(int64_t n, int64_t n_rows) {
  return at::arange(n, at::kLong).mul_(n_rows).floor_divide_(std::max<int64_t>(n, 1));
}

/// Where `n` bags of equal lengths, of `n_ids` ids in all, begin, and where the last one ends: [n + 1] int64 on the CPU.
inline at::Tensor planned_offsets(int64_t n, int64_t n_ids) {
  return at::arange(n + 1, at::kLong).mul_(n_ids).floor_divide_(std::max<int64_t>(n, 1));
}

/// The first of `n` rows that belongs to `group`. Equal groups have one row more in the first ones if rows are left.
int64_t planned_begin(int64_t group, int64_t n, int64_t n_groups);

/// The `n_choices` different experts of each of `n` tokens: [n * n_choices] int64 on the CPU. An expert has at most one choice of each token, so
/// other experts get what a larger share would ask for.
at::Tensor planned_experts(int64_t n, int64_t n_choices, int64_t n_experts);

}  // namespace shardwise
