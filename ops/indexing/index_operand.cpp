#include "ops/indexing/index_operand.h"

#include "ops/support/by_rule.h"
#include "ops/support/dim_pieces.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/event_stream.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/redistribute/move_many.h"
#include "runtime/redistribute/traced_step.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/traced_pieces.h"
#include "text/check.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include <limits>
#include <set>

namespace shardwise {
namespace {

using Fail = void (*)(const std::string& text);

void check_bounds(const char* op, const IndexBounds& bounds, int64_t lowest, int64_t highest, Fail fail) {
  if (lowest < bounds.lowest || highest >= bounds.size)
    fail(fmt::format("[{}] index {} is out of bounds for dimension {} with size {}. Use indices in [{}, {}).", op,
                     highest >= bounds.size ? highest : lowest, bounds.dim, bounds.size, bounds.lowest, bounds.size));
}

/// The check of the indices in the first piece, as a step of a graph. Other pieces tell the sizes that `check_of` needs.
TracedStep check_step(const std::vector<SpecPtr>& specs, const std::string& words, const CheckRange& check,
                      std::optional<int64_t> ignored, const std::function<CheckRange(at::TensorList)>& check_of) {
  TracedStep step{specs, {specs[0]}, "check of " + words};
  step.call = [=, spec = specs[0]](const Shards& pieces) {
    const Shards indices(pieces.begin(), pieces.begin() + spec->boxes().size());
    if (const auto range = range_of(wrap(spec, indices), ignored)) check(range->first, range->second);
    return indices;
  };
  step.for_sizes = [=](at::TensorList pieces) {
    std::vector<SpecPtr> own;
    for (size_t i = 0; i < specs.size(); ++i) own.push_back(with_whole_sizes(specs[i], pieces[i].sizes()));
    return check_step(own, words, check_of(pieces), ignored, check_of);
  };
  return step;
}

/// `index`, after `fail` with an error's text if an index is not within `bounds`. `op` lives as long as the process.
at::Tensor within(const char* op, const at::Tensor& index, const IndexBounds& bounds, Fail fail,
                  const at::Tensor& self) {
  if (is_alone(index)) return index;
  const CommScope scope(op);
  const auto words = [&] { return fmt::format("{} along {} in [{}, {})", op, bounds.dim, bounds.lowest, bounds.size); };
  const auto check_in = [=](const IndexBounds& own) -> CheckRange {
    return [=](int64_t lowest, int64_t highest) { check_bounds(op, own, lowest, highest, fail); };
  };
  const auto* impl = maybe_dtensor(index);
  const bool is_sized = self.defined() && self.sym_size(bounds.dim).is_symbolic();
  if (!is_sized || !is_traced_index(index) || impl->local_tensors().size() != 1) {
    if (is_sized) fixed_size(self, bounds.dim);
    return checked_range(index, words, check_in(bounds));
  }
  const auto check_of = [=](at::TensorList pieces) {
    const int64_t size = pieces[1].size(bounds.dim);
    return check_in({bounds.dim, bounds.lowest < 0 ? -size : 0, size});
  };
  const TracedStep step = check_step({impl->spec(), spec_of(self)}, words(), check_in(bounds), {}, check_of);
  return wrap(impl->spec(), add_step(step, {impl->local_tensors()[0], maybe_dtensor(self)->local_tensors()[0]}));
}

void fail_as_index(const std::string& text) { TORCH_CHECK_INDEX(false, text); }
void fail_as_gather(const std::string& text) { TORCH_CHECK(false, text); }

/// True if `operand` gets from one sharding along mesh dim `m` to another one, and changes along no other mesh dim.
bool moves_along(const at::Tensor& operand, const SpecPtr& wanted, int64_t m) {
  const auto* impl = maybe_dtensor(operand);
  if (!impl || !wanted || impl->spec() == wanted || impl->spec()->mesh() != wanted->mesh() || impl->holds_subclass() ||
      impl->owned_rows())
    return false;
  Placements placements = impl->spec()->placements().vec();
  if (!placements[m].divides() || placements[m] == wanted->placements()[m]) return false;
  placements[m] = wanted->placements()[m];
  return placements == wanted->placements();
}

}  // namespace

bool is_alone(const at::Tensor& operand) {
  const auto* impl = maybe_dtensor(operand);
  return impl && impl->spec()->mesh()->size() == 1;
}

at::Tensor index_operand(const char* op, const at::Tensor& index, const MeshPtr& mesh) {
  if (!is_dtensor(index)) {
    const auto objection = index.dim() == 0 ? std::nullopt : objection_to_plain(index, OperandRole::kPositions, mesh);
    SW_CHECK_VALUE(!objection, "[{}] {}", op, *objection);
    return replica_of(index.to(mesh->device()), mesh);
  }
  const Spec& spec = *spec_of(index);
  check_same_mesh(op, mesh, spec.mesh());
  const CommScope scope(op);
  return reduced(index);
}

SpecPtr layout_beside(const at::Tensor& index, const at::Tensor& self) {
  const Spec& spec = *spec_of(self);
  Placements placements = spec_of(index)->placements().vec();
  for (size_t m = 0; m < placements.size(); ++m)
    if (spec.placements()[m].divides() && spec.mesh()->size(m) > 1) placements[m] = Placement::replicate();
  return index.nbytes() > self.nbytes() ? spec_of(index) : spec_of(index)->with_placements(std::move(placements));
}

at::Tensor index_of(const char* op, const at::Tensor& index, const at::Tensor& self) {
  const at::Tensor result = index_operand(op, index, spec_of(self)->mesh());
  const CommScope scope(op);
  return moved_to(result, layout_beside(result, self)->placements().vec());
}

std::optional<std::pair<int64_t, int64_t>> range_of(const at::Tensor& index, std::optional<int64_t> ignored,
                                                    bool of_all_ranks) {
  const auto* impl = maybe_dtensor(index);
  if (impl ? !impl->spec()->is_member() || impl->spec()->numel() == 0 : index.is_meta() || is_tracing())
    return std::nullopt;
  BelowAutograd guard;
  std::pair range{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  for (const at::Tensor& piece : impl ? impl->shards() : Shards{index}) {
    if (piece.is_meta()) continue;
    const at::Tensor counted = ignored ? piece.to(at::kLong).masked_select(piece.ne(*ignored)) : piece;
    if (counted.numel() == 0) continue;
    const auto [low, high] = at::aminmax(counted);
    range = {std::min(range.first, low.item<int64_t>()), std::max(range.second, high.item<int64_t>())};
  }
  if (impl && of_all_ranks) range = agreed_range(*impl->spec(), range);
  return range.first <= range.second ? std::optional(range) : std::nullopt;
}

std::pair<int64_t, int64_t> agreed_range(const Spec& spec, std::pair<int64_t, int64_t> own) {
  if (spec.layout().is_replicated()) return own;
  const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram);  // two numbers for every layout
  const c10::Device device = spec.mesh()->is_meta() ? c10::Device(at::kCPU) : spec.mesh()->device();
  at::Tensor bounds = at::tensor({~own.first, own.second}, at::kLong).to(device);  // ~: the minimum as a maximum
  for (const int64_t m : mesh_dims_that_differ(spec.placements()))
    all_reduce(*spec.mesh()->group(m), bounds, Reduce::kMax);
  bounds = bounds.cpu();
  return {~bounds[0].item<int64_t>(), bounds[1].item<int64_t>()};
}

bool is_traced_index(const at::Tensor& index) {
  const auto* impl = maybe_dtensor(index);
  return impl && is_traced(impl->local_tensors()) && !impl->spec()->mesh()->is_meta();
}

at::Tensor checked_in_graph(const at::Tensor& index, const std::string& words, const CheckRange& check,
                            std::optional<int64_t> ignored) {
  const auto* impl = maybe_dtensor(index);
  const TracedStep step = check_step({impl->spec()}, words, check, ignored, [=](at::TensorList) { return check; });
  return wrap(impl->spec(), add_step(step, impl->local_tensors()));
}

at::Tensor checked_indices(const char* op, const at::Tensor& index, int64_t dim, int64_t lowest, int64_t size,
                           const at::Tensor& self) {
  return within(op, index, {dim, lowest, size}, fail_as_index, self);
}

at::Tensor checked_positions(const char* op, const at::Tensor& index, int64_t dim, int64_t size,
                             const at::Tensor& self) {
  return within(op, index, {dim, 0, size}, fail_as_gather, self);
}

bool move_in_range(const char* op, std::vector<at::Tensor>& operands, c10::ArrayRef<IndexBounds> bounds,
                   bool fails_as_gather, const std::function<c10::SmallVector<SpecPtr, 8>()>& wanted) {
  const MeshPtr& mesh = spec_of(operands[1])->mesh();
  const auto n = static_cast<int64_t>(bounds.size());
  std::set<int64_t> sharding;
  for (int64_t i = 1; i <= n; ++i)
    for (const int64_t m : mesh_dims_that_differ(spec_of(operands[i])->placements())) sharding.insert(m);
  if (sharding.size() != 1 || mesh->size(*sharding.begin()) == 1 || is_tracing()) return false;
  const int64_t along = *sharding.begin();
  const auto layouts = wanted();
  std::vector<size_t> moving;
  for (size_t i = 0; i < layouts.size(); ++i)
    if (moves_along(operands[i], layouts[i], along)) moving.push_back(i);
  if (moving.empty()) return false;
  const CommScope scope(op);
  OpSpan span;
  at::Tensor own = at::empty({1, n, 2}, at::kLong);
  for (int64_t i = 0; i < n; ++i) {
    const auto range = range_of(operands[i + 1], std::nullopt, /*of_all_ranks=*/false);
    own[0][i][0] = range ? range->first : 0, own[0][i][1] = range ? range->second : -1;
  }
  Placements by_rank(mesh->ndim());
  by_rank[along] = Placement::shard(0);
  const Dims sizes{mesh->size(along), n, 2};
  std::vector<SpecPtr> from{Spec::intern(mesh, sizes, by_rank, row_major_strides(sizes), at::kLong)};
  std::vector<SpecPtr> to{from[0]->replicated()};
  std::vector<Shards> pieces(1);
  if (mesh->is_member()) pieces[0] = {own.to(mesh->device())};
  for (const size_t i : moving) {
    from.push_back(spec_of(operands[i]));
    to.push_back(layouts[i]);
    pieces.push_back(maybe_dtensor(operands[i])->shards());
  }
  std::vector<Shards> moved = move_many(from, pieces, to);
  for (size_t k = 0; k < moving.size(); ++k) operands[moving[k]] = wrap(to[k + 1], std::move(moved[k + 1]));
  if (span.is_open()) [[unlikely]] {
    OpDescription description{op, "moved with the bounds of indices"};
    for (const size_t k : moving) description.results.push_back(to_string(spec_of(operands[k])->placements()));
    for (size_t k = 1; k < from.size(); ++k) description.given.push_back(to_string(from[k]->placements()));
    description.used = description.given;
    span.end(std::make_shared<OpDescription>(std::move(description)));
  }
  if (!mesh->is_member() || mesh->is_meta()) return true;
  const at::Tensor lowest = std::get<0>(moved[0][0].cpu().min(0)), highest = std::get<0>(moved[0][0].cpu().max(0));
  for (int64_t i = 0; i < n; ++i)
    check_bounds(op, bounds[i], lowest[i][0].item<int64_t>(), highest[i][1].item<int64_t>(),
                 fails_as_gather ? fail_as_gather : fail_as_index);
  return true;
}

}  // namespace shardwise
