// ops/products/grouped_mm.cpp: products of groups of rows, each with a matrix of its own, as the experts of a mixture compute.
//
//   rows [T, K] ordered by group, matrices [E, K, N], offs [E]: where each group of rows ends
//
//   matrices sharded by group          each rank multiplies the rows of its groups: rows are moved there, matrices stay
//   matrices sharded along K or N      as in a matrix product: Partial(sum), or sharded columns
//   rows sharded, matrices whole       each rank multiplies the rows it has
#include "ops/families.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "ops/support/planned_values.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/propagate.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

constexpr const char* kGroupedMm = "aten::_grouped_mm";

// Kernels of plain tensors. A rank has the rows from `row` on and the groups from `group` on.

/// Calls `use(i, begin, end)` for each of `n` groups with rows among this rank's `n_rows`.
template <class Use>
void for_each_group(const at::Tensor& offs, int64_t group, int64_t n, int64_t row, int64_t n_rows, const Use& use) {
  const Dims ends = integers_in(offs);
  const auto local_end = [&](int64_t i) { return i < 0 ? 0 : std::clamp<int64_t>(ends[i] - row, 0, n_rows); };
  for (int64_t i = 0; i < n; ++i)
    if (const int64_t begin = local_end(group + i - 1), end = local_end(group + i); begin < end) use(i, begin, end);
}

at::Tensor compute_rows(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& offs, int64_t row,
                        int64_t group) {
  const at::Tensor result = at::zeros({self.size(0), mat2.size(2)}, self.options());
  for_each_group(offs, group, mat2.size(0), row, self.size(0), [&](int64_t i, int64_t begin, int64_t end) {
    at::Tensor place = result.slice(0, begin, end);
    at::mm_out(place, self.slice(0, begin, end), mat2.select(0, i));
  });
  return result;
}

at::Tensor shape_of_rows(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& /*offs*/, int64_t /*row*/,
                         int64_t /*group*/) {
  return at::empty({self.size(0), mat2.size(2)}, self.options());
}

at::Tensor compute_matrices(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& offs,
                            const std::optional<at::Tensor>& /*like*/, int64_t n_groups, int64_t row, int64_t group) {
  const at::Tensor result = at::zeros({n_groups, self.size(1), mat2.size(1)}, self.options());
  for_each_group(offs, group, n_groups, row, self.size(0), [&](int64_t i, int64_t begin, int64_t end) {
    at::Tensor place = result.select(0, i);
    at::mm_out(place, self.slice(0, begin, end).t(), mat2.slice(0, begin, end));
  });
  return result;
}

at::Tensor shape_of_matrices(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& /*offs*/,
                             const std::optional<at::Tensor>& /*like*/, int64_t n_groups, int64_t /*row*/,
                             int64_t /*group*/) {
  return at::empty({n_groups, self.size(1), mat2.size(1)}, self.options());
}

// Rules of the operators. On mesh dims that shard the groups, placements are fixed before the call; on all others the rule is a matrix product's.

using MeshDims = std::vector<int64_t>;

/// The mesh dims along which the matrices of `spec` are sharded by group.
MeshDims dims_of_groups(const Spec& spec) {
  return spec.sizes()[0] == 0 ? MeshDims() : mesh_dims_splitting(spec.placements(), 0);
}

bool are_sharded_rows(const Spec& spec, const MeshDims& mesh_dims) {
  return std::ranges::all_of(mesh_dims, [&](int64_t m) { return spec.placements()[m].split_dim() == 0; });
}

/// `spec` with the placements that `other` has on `mesh_dims`, or with Replicate() there if `other` is null.
SpecPtr overlaid(const Spec& spec, const MeshDims& mesh_dims, const Spec* other) {
  Placements placements = spec.placements().vec();
  for (const int64_t m : mesh_dims) placements[m] = other ? other->placements()[m] : Placement::replicate();
  return spec.with_placements(std::move(placements));
}

/// Propagates `call` over the mesh dims that do not shard groups. On the mesh dims `of_groups`, the operands `kept` keep their placements, and the
/// result has those of `output`.
std::optional<Propagation> propagate_beside(OpCall call, const Signature& signature, const MeshDims& of_groups,
                                            c10::ArrayRef<size_t> kept, const Spec& output) {
  std::vector<SpecPtr> given;
  for (Operand& operand : call.operands) given.push_back(operand.spec);
  for (const size_t i : kept) call.operands[i].spec = overlaid(*given[i], of_groups, nullptr);
  auto result = propagate(call, signature);
  if (!result || of_groups.empty()) return result;
  for (const size_t i : kept)
    if (result->inputs[i]) result->inputs[i] = overlaid(*result->inputs[i], of_groups, given[i].get());
  result->outputs[0] = overlaid(*result->outputs[0], of_groups, &output);
  return result;
}

std::optional<Propagation> place_rows(const OpCall& call) {
  const Spec &rows = *call.operands[0].spec, &matrices = *call.operands[1].spec;
  const MeshDims of_groups = dims_of_groups(matrices);
  if (!are_sharded_rows(rows, of_groups)) return std::nullopt;
  static const Rule product = Rule("tk,ekn,_->tn").multilinear();
  Signature signature = product.signature(call);
  for (Factor& factor : signature.factors)
    factor.is_whole |= factor.letter == 'e' || (factor.letter == 't' && !of_groups.empty());
  return propagate_beside(call, signature, of_groups, {0, 1}, rows);
}

std::optional<Propagation> place_matrices(const OpCall& call) {
  const Spec &left = *call.operands[0].spec, &right = *call.operands[1].spec;
  const int at_like = call.operand_at("like");
  const SpecPtr like = at_like < 0 ? SpecPtr() : call.operands[at_like].spec;
  const MeshDims of_groups = like ? dims_of_groups(*like) : MeshDims();
  if (!are_sharded_rows(left, of_groups) || !are_sharded_rows(right, of_groups)) return std::nullopt;
  static const Rule product = Rule("tm,tn,_->_mn").multilinear();
  OpCall products = call;
  if (at_like >= 0) products.operands.erase(products.operands.begin() + at_like);  // read for its layout alone
  Signature signature = product.signature(products);
  for (Factor& factor : signature.factors) factor.is_whole |= factor.letter == 't' && !of_groups.empty();
  auto result = propagate_beside(products, signature, of_groups, {0, 1}, like ? *like : left);
  if (result && at_like >= 0) result->inputs.insert(result->inputs.begin() + at_like, SpecPtr());
  return result;
}

void localize_rows(const LocalCall& local, std::vector<c10::IValue>& args) {
  args[local.call.op.arg_index("row")] = local.inputs[0].offsets[0];
  args[local.call.op.arg_index("group")] = local.inputs[1].offsets[0];
}

void localize_matrices(const LocalCall& local, std::vector<c10::IValue>& args) {
  args[local.call.op.arg_index("row")] = local.inputs[0].offsets[0];
  args[local.call.op.arg_index("group")] = local.outputs[0].offsets[0];
  args[local.call.op.arg_index("n_groups")] = local.outputs[0].sizes[0];
}

// Layouts by groups.

/// The end of each group, checked. Throws: c10::ValueError. Pre: this rank has the values.
Dims checked_ends(const at::Tensor& offs, int64_t n_rows) {
  Dims ends = integers_in(offs);
  int64_t last = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    SW_CHECK_VALUE(ends[i] >= last && ends[i] <= n_rows,
                   "[{}] offs[{}] is {}: offs must not exceed the number of rows, {}, nor be below the previous entry, "
                   "{}. Give the cumulative row counts of the groups: counts.cumsum(0, dtype=torch.int32).",
                   kGroupedMm, i, ends[i], n_rows, last);
    last = ends[i];
  }
  return ends;
}

/// Redistributes `rows` so that each rank has the rows of its groups, if `matrices` are sharded by group.
at::Tensor rows_by_group(const at::Tensor& rows, const Spec& matrices, const at::Tensor& offs) {
  const MeshDims of_groups = dims_of_groups(matrices);
  if (of_groups.empty()) return rows;
  const MeshPtr& mesh = matrices.mesh();
  SW_CHECK_NOT_IMPLEMENTED(!is_dtensor(offs) || mesh->is_member(),
                           "[{}] the layout of the result depends on the values of offs, but rank {} does not have "
                           "them. Give offs as a torch.Tensor, equal on all ranks, or call it on members only.",
                           kGroupedMm, mesh->rank());
  const bool is_planned = mesh->is_meta();
  if (is_planned && are_sharded_rows(*spec_of(rows), of_groups)) return rows;  // counts as laid out by group
  const Dims ends = is_planned ? Dims() : checked_ends(offs, rows.size(0));
  const int64_t n_groups = offs.size(0);
  if (is_planned) note_planned(matrices);
  const Placements by_group = matrices.layout().resized(0, [&](int64_t group) {
    if (is_planned) return planned_begin(group, rows.size(0), n_groups);
    return group == 0 ? 0 : group == n_groups ? rows.size(0) : ends[group - 1];
  });
  Placements wanted = whole_along(spec_of(rows)->placements(), 0);
  for (const int64_t m : of_groups) wanted[m] = by_group[m];
  return redistribute(rows, std::move(wanted));
}

// Calls of the operators. Rows are laid out by group already.

at::Tensor call_rows(const at::Tensor& rows, const at::Tensor& matrices, const at::Tensor& offs) {
  static auto op = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t)>(
      "shardwise::grouped_rows");
  return op.call(rows, matrices, offs, 0, 0);
}

at::Tensor call_matrices(const at::Tensor& left, const at::Tensor& right, const at::Tensor& offs,
                         const std::optional<at::Tensor>& like) {
  static auto op =
      operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             int64_t, int64_t, int64_t)>("shardwise::grouped_matrices");
  return op.call(left, right, offs, like, offs.size(0), 0, 0);
}

at::Tensor rows_product(const at::Tensor& rows, const at::Tensor& matrices, const at::Tensor& offs) {
  return call_rows(is_dtensor(matrices) ? rows_by_group(rows, *spec_of(matrices), offs) : rows, matrices, offs);
}

/// The sum over each group's rows: [T, M] and [T, N] give [E, M, N], sharded by group as `like` is.
at::Tensor matrices_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& offs,
                            const std::optional<at::Tensor>& like) {
  if (!like || dims_of_groups(*spec_of(*like)).empty()) return call_matrices(left, right, offs, std::nullopt);
  const auto laid_out = [&](const at::Tensor& rows) { return rows_by_group(rows, *spec_of(*like), offs); };
  return call_matrices(laid_out(left), laid_out(right), offs, like);
}

// Derivatives: the derivative of each product is the other product.

std::optional<at::Tensor> if_distributed(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? std::optional(tensor.detach()) : std::nullopt;
}

at::Tensor differentiable_rows(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& offs, int64_t /*row*/,
                               int64_t /*group*/) {
  const at::Tensor result = below_derivatives([&] { return call_rows(self, mat2, offs); });
  return with_derivative({self, mat2}, result, {self, mat2, offs}, "GroupedMmBackward",
                         [](const at::Tensor& grad, const variable_list& saved, const Wanted& wanted) {
                           const at::Tensor &rows = saved[0], &matrices = saved[1], &ends = saved[2];
                           variable_list grads(2);
                           if (wanted[0]) grads[0] = rows_product(grad, matrices.mT(), ends);
                           if (wanted[1]) grads[1] = matrices_product(rows, grad, ends, if_distributed(matrices));
                           return grads;
                         });
}

at::Tensor differentiable_matrices(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& offs,
                                   const std::optional<at::Tensor>& like, int64_t /*n_groups*/, int64_t /*row*/,
                                   int64_t /*group*/) {
  const at::Tensor result = below_derivatives([&] { return call_matrices(self, mat2, offs, like); });
  return with_derivative({self, mat2}, result, {self, mat2, offs}, "GroupedMmBackwardBackward",
                         [](const at::Tensor& outer, const variable_list& saved, const Wanted& wanted) {
                           const at::Tensor &left = saved[0], &right = saved[1], &ends = saved[2];
                           variable_list grads(2);
                           if (wanted[0]) grads[0] = rows_product(right, outer.mT(), ends);
                           if (wanted[1]) grads[1] = rows_product(left, outer, ends);
                           return grads;
                         });
}

/// A plain tensor becomes a replica; a tensor in pieces is gathered, a strided Shard becomes a Shard.
/// Throws: c10::ValueError for a plain tensor that plain_operand.h objects to.
at::Tensor operand_of(const at::Tensor& tensor, const MeshPtr& mesh) {
  if (!is_dtensor(tensor)) {
    const auto objection = objection_to_plain(tensor, OperandRole::kValue, mesh);
    SW_CHECK_VALUE(!objection, "[{}] {}", kGroupedMm, *objection);
  }
  const at::Tensor operand = replica_of(tensor, mesh);
  const Spec& spec = *spec_of(operand);
  return spec.layout().has_one_box_each() ? operand : redistribute(operand, without_boxes(spec.placements()));
}

/// `offs`, with its values on each rank. Plain offsets stay plain: ranks outside the mesh know them, too.
at::Tensor ends_on(const at::Tensor& offs, const MeshPtr& mesh) {
  const at::Tensor ends = index_operand(kGroupedMm, offs, mesh);
  return is_dtensor(offs) ? redistribute(ends, Placements(mesh->ndim())) : offs;
}

/// Makes torch's checks of the arguments, on all ranks and before any message.
void check_arguments(const at::Tensor& self, const at::Tensor& mat2, const std::optional<at::Tensor>& offs,
                     const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> out_dtype) {
  const auto shape = [](const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); };
  const auto is_matrix_or_batch = [](const at::Tensor& tensor) { return tensor.dim() == 2 || tensor.dim() == 3; };
  SW_CHECK_VALUE(
      is_matrix_or_batch(self) && is_matrix_or_batch(mat2),
      "[{}] mat_a and mat_b have shapes {} and {}: each must have 2 or 3 dims. Give matrices or batches of matrices.",
      kGroupedMm, shape(self), shape(mat2));
  const auto is_served = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  SW_CHECK_VALUE(is_served(self.scalar_type()) && self.scalar_type() == mat2.scalar_type(),
                 "[{}] mat_a is {} and mat_b is {}: both must be Float32, BFloat16 or Float16, and of one dtype. Use "
                 ".to() for one of them.",
                 kGroupedMm, c10::toString(self.scalar_type()), c10::toString(mat2.scalar_type()));
  SW_CHECK_VALUE(self.size(-1) == mat2.size(-2),
                 "[{}] contraction dimension of mat_a and mat_b must match: shapes {} and {} have {} and {}.",
                 kGroupedMm, shape(self), shape(mat2), self.size(-1), mat2.size(-2));
  const bool is_batched = self.dim() == 3 && mat2.dim() == 3, has_offs = offs && offs->defined();
  SW_CHECK_VALUE(has_offs != is_batched,
                 "[{}] Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d: got {} "
                 "and {} with{} offs.",
                 kGroupedMm, shape(self), shape(mat2), has_offs ? "" : "out");
  SW_CHECK_VALUE(!is_batched || self.size(0) == mat2.size(0),
                 "[{}] matrix batch sizes have to match: shapes {} and {} have {} and {}.", kGroupedMm, shape(self),
                 shape(mat2), self.size(0), mat2.size(0));
  SW_CHECK_NOT_IMPLEMENTED(!bias || !bias->defined(),
                           "[{}] Bias not supported yet, by torch neither. Add it to the result, a row per group: "
                           "result + bias.repeat_interleave(counts, 0).",
                           kGroupedMm);
  SW_CHECK_VALUE(!out_dtype || *out_dtype == self.scalar_type(),
                 "[{}] Grouped gemm output dtype must match `mat_a` dtype: out_dtype is {}, and `mat_a` is {}. Use "
                 ".to() on the result.",
                 kGroupedMm, out_dtype ? c10::toString(*out_dtype) : "", c10::toString(self.scalar_type()));
  if (!has_offs) return;
  SW_CHECK_VALUE(
      offs->dim() == 1 && offs->scalar_type() == at::kInt,
      "[{}] Offsets have to be int32, of 1 dim: offs is {} of shape {}. Use counts.cumsum(0, dtype=torch.int32).",
      kGroupedMm, c10::toString(offs->scalar_type()), shape(*offs));
  const int64_t n_groups = self.dim() == 3 ? self.size(0) : mat2.dim() == 3 ? mat2.size(0) : offs->size(0);
  SW_CHECK_VALUE(offs->size(0) == n_groups,
                 "[{}] matrix batch sizes have to match: offs has {} entries for {} groups. Give one per group.",
                 kGroupedMm, offs->size(0), n_groups);
}

/// aten::_grouped_mm: [T, K] and [E, K, N] give [T, N], two matrices [M, T] and [T, N] give [E, M, N], [E, M, K] and [K, T] give [M, T]; these need
/// `offs`, int32 and never decreasing. Rows after the last group are zeros. Two tensors of 3 dims give a batched product. Differentiable.
///
/// On mesh dims that shard `mat2` by group, the rows and the result are laid out as Shard(0, sizes=...), by the number of rows in each rank's groups.
/// Other mesh dims do not shard the rows then.
/// Throws: c10::ValueError for shapes, dtypes and offsets that do not fit. Cost: the rows that change ranks; `offs` is read on the host.
at::Tensor grouped_mm(const at::Tensor& self, const at::Tensor& mat2, const std::optional<at::Tensor>& offs,
                      const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> out_dtype) {
  check_arguments(self, mat2, offs, bias, out_dtype);
  if (!offs || !offs->defined()) return at::bmm(self, mat2);
  const MeshPtr mesh = spec_of(is_dtensor(self) ? self : is_dtensor(mat2) ? mat2 : *offs)->mesh();
  const at::Tensor left = operand_of(self, mesh), right = operand_of(mat2, mesh), ends = ends_on(*offs, mesh);
  // Values are checked on the CPU only: on other devices torch does not check them either, because the host would wait for them.
  if (mesh->device_type() == at::kCPU && !(is_dtensor(ends) && !mesh->is_member()))
    checked_ends(ends, self.dim() == 3 ? mat2.size(-1) : mat2.dim() == 3 ? self.size(0) : self.size(1));
  if (mat2.dim() == 3) return rows_product(left, right, ends);
  if (self.dim() == 3) return rows_product(right.t(), left.mT(), ends).t();
  return matrices_product(left.t(), right, ends, std::nullopt);
}

}  // namespace

void register_grouped_mm(RuleTable& table) {
  define_operator("grouped_rows(Tensor self, Tensor mat2, Tensor offs, int row, int group) -> Tensor",
                  {&compute_rows, &shape_of_rows, &differentiable_rows});
  define_operator(
      "grouped_matrices(Tensor self, Tensor mat2, Tensor offs, Tensor? like, int n_groups, int row, int group) -> "
      "Tensor",
      {&compute_matrices, &shape_of_matrices, &differentiable_matrices});
  table.add("shardwise::grouped_rows", Rule::placed("tk,ekn->tn by group", place_rows).localized(localize_rows));
  table.add("shardwise::grouped_matrices",
            Rule::placed("tm,tn->emn by group", place_matrices).localized(localize_matrices));
  add_composition("_grouped_mm", &grouped_mm);
}

}  // namespace shardwise
