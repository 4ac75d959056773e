// ops/shapes/diagonals.cpp: triangles and diagonals of matrices; each shard uses the diagonal's offset within it.
#include "ops/families.h"
#include "placements/placement_list.h"
#include "runtime/rules/propagate.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {
namespace {

/// The diagonal's offset relative to this rank's shard.
void shift_diagonal(const LocalCall& local, std::vector<c10::IValue>& args) {
  const size_t at = local.call.op.arg_index("diagonal");
  const Dims& first = local.inputs[0].offsets;
  if (first.size() >= 2) args[at] = local.call.args[at].toInt() + first[first.size() - 2] - first[first.size() - 1];
}

/// The two matrix dims of a call and their diagonal, whose element t is in row t + first_row.
struct Plane {
  int64_t rows, columns, first_row, length;

  Plane(const OpCall& call, c10::IntArrayRef sizes) {
    const auto n_dims = static_cast<int64_t>(sizes.size());
    const int64_t offset = call.arg("offset").toInt();
    rows = c10::maybe_wrap_dim(call.arg("dim1").toInt(), n_dims);
    columns = c10::maybe_wrap_dim(call.arg("dim2").toInt(), n_dims);
    first_row = std::max<int64_t>(-offset, 0);
    length = std::max<int64_t>(std::min(sizes[rows] - first_row, sizes[columns] - std::max<int64_t>(offset, 0)), 0);
  }
  bool has(int64_t dim) const { return dim == rows || dim == columns; }
  /// The dim of the result for `dim` of the input: the diagonal is the last dim.
  int64_t dim_of_diagonals(int64_t dim) const { return dim - (rows < dim) - (columns < dim); }
  /// Elements of the diagonal before row (column) `index`.
  int64_t before(int64_t dim, int64_t index) const {
    const int64_t first = dim == rows ? first_row : first_row + shift;
    return std::clamp<int64_t>(index - first, 0, length);
  }
  int64_t shift = 0;  // an element's column minus its row
};

/// Both matrix dims are whole; input and output share all other dims.
void describe_planes(const OpCall& call, c10::IntArrayRef sizes, Signature& signature, Axes& planes, Axes& diagonals) {
  const Plane plane(call, sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    planes.push_back({signature.add_factor(sizes[dim], plane.has(static_cast<int64_t>(dim)))});
    if (!plane.has(static_cast<int64_t>(dim))) diagonals.push_back(planes.back());
  }
}

void describe_diagonal(const OpCall& call, Signature& signature) {
  Axes planes, diagonals;
  describe_planes(call, call.operands[0].sizes, signature, planes, diagonals);
  diagonals.push_back({});
  signature.set({planes}, {diagonals});
}

/// The reverse: diagonals in, matrices out.
void describe_spread(const OpCall& call, Signature& signature) {
  Axes planes, diagonals;
  describe_planes(call, call.outputs[0].sizes, signature, planes, diagonals);
  diagonals.push_back({signature.add_factor(call.operands[0].sizes.back(), /*is_whole=*/true)});
  signature.set({diagonals}, {planes});
}

/// Each rank computes its part of the diagonal by rows or by columns. If both are sharded, columns are gathered.
std::optional<Propagation> place_diagonal(const OpCall& call) {
  static const Rule whole = Rule("diagonal", describe_diagonal).linear(Linearity::kPass);
  SpecPtr spec = call.operands[0].spec;
  if (!spec->layout().has_one_box_each()) return propagate(call, whole.signature(call));
  Plane plane(call, spec->sizes());
  plane.shift = call.arg("offset").toInt();
  const bool has_rows = spec->layout().splits(plane.rows);
  SpecPtr input = has_rows ? spec->with_placements(whole_along(spec->placements(), plane.columns)) : spec;
  const int64_t sharded = has_rows ? plane.rows : plane.columns;
  const Placements resized =
      input->layout().resized(sharded, [&](int64_t index) { return plane.before(sharded, index); });
  return placed(call, input, renumbered(resized, [&](int64_t dim) {
                  return plane.has(dim) ? spec->dim() - 2 : plane.dim_of_diagonals(dim);
                }));
}

/// A sharded diagonal gives sharded rows. The first rank also has the rows before the diagonal, the last rank the rows after it.
std::optional<Propagation> place_diagonal_backward(const OpCall& call) {
  static const Rule whole = Rule("diagonal_backward", describe_spread).linear();
  const SpecPtr& spec = call.operands[0].spec;
  const Dims& sizes = call.outputs[0].sizes;
  const Plane plane(call, sizes);
  const int64_t last = spec->dim() - 1;
  if (!spec->layout().splits(last) || !are_linear(spec->placements()) || plane.length == 0)
    return propagate(call, whole.signature(call));
  const auto row_of = [&](int64_t t) {
    return t == 0 ? 0 : t == plane.length ? sizes[plane.rows] : t + plane.first_row;
  };
  const auto dim_of_result = [&](int64_t dim) {
    if (dim == last) return plane.rows;
    for (int64_t inner : {std::min(plane.rows, plane.columns), std::max(plane.rows, plane.columns)})
      dim += dim >= inner;
    return dim;
  };
  return placed(call, spec, renumbered(spec->layout().resized(last, row_of), dim_of_result));
}

/// `matrices`: this rank's box of the matrices.
void shift_offset(const LocalCall& local, const Box& matrices, std::vector<c10::IValue>& args) {
  const size_t at = local.call.op.arg_index("offset");
  const Plane plane(local.call, matrices.sizes);
  args[at] = local.call.args[at].toInt() + matrices.offsets[plane.rows] - matrices.offsets[plane.columns];
}

void localize_diagonal(const LocalCall& local, std::vector<c10::IValue>& args) {
  shift_offset(local, local.inputs[0], args);
}

void localize_diagonal_backward(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Box& matrices = local.outputs[0];
  shift_offset(local, matrices, args);
  args[local.call.op.arg_index("input_sizes")] = std::vector<int64_t>(matrices.sizes.begin(), matrices.sizes.end());
}

}  // namespace

void register_diagonals(RuleTable& table) {
  table.add({"aten::tril", "aten::triu", "aten::tril_", "aten::triu_"}, pointwise().linear().localized(shift_diagonal));
  table.keep_symbols({"aten::tril", "aten::triu"});
  table.add({"aten::diagonal", "aten::diagonal_copy"},
            Rule::placed("diagonal passing", place_diagonal).localized(localize_diagonal));
  table.add("aten::diagonal_backward",
            Rule::placed("diagonal_backward linear", place_diagonal_backward).localized(localize_diagonal_backward));
  table.add("aten::diag_embed", Rule("diag_embed", describe_spread).linear());
}

}  // namespace shardwise
