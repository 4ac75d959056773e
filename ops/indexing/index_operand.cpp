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
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include <limits>

namespace shardwise {
namespace {

using Fail = void (*)(const std::string& text);

void check_bounds(const char* op, int64_t dim, int64_t lowest_allowed, int64_t size, int64_t lowest, int64_t highest,
                  Fail fail) {
  if (lowest < lowest_allowed || highest >= size)
    fail(fmt::format("[{}] index {} is out of bounds for dimension {} with size {}. Use indices in [{}, {}).", op,
                     highest >= size ? highest : lowest, dim, size, lowest_allowed, size));
}

/// `index`, after `fail` with an error's text if an index is not in [lowest_allowed, size). `op` lives as long as the process.
at::Tensor within(const char* op, const at::Tensor& index, int64_t dim, int64_t lowest_allowed, int64_t size,
                  Fail fail) {
  if (is_alone(index)) return index;
  const CommScope scope(op);
  const auto words = [&] { return fmt::format("{} along {} in [{}, {})", op, dim, lowest_allowed, size); };
  return checked_range(index, words, [=](int64_t lowest, int64_t highest) {
    check_bounds(op, dim, lowest_allowed, size, lowest, highest, fail);
  });
}

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

at::Tensor index_of(const char* op, const at::Tensor& index, const at::Tensor& self) {
  const Spec& spec = *spec_of(self);
  at::Tensor result = index_operand(op, index, spec.mesh());
  Placements placements = spec_of(result)->placements().vec();
  for (size_t m = 0; m < placements.size(); ++m)
    if (spec.placements()[m].divides() && spec.mesh()->size(m) > 1) placements[m] = Placement::replicate();
  if (placements == spec_of(result)->placements() || result.nbytes() > self.nbytes()) return result;
  const CommScope scope(op);
  return moved_to(result, std::move(placements));
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
  const std::function<TracedStep(const SpecPtr&)> step_of = [=](const SpecPtr& spec) -> TracedStep {
    const auto run = [=](const Shards& pieces) {
      if (const auto range = range_of(wrap(spec, pieces), ignored)) check(range->first, range->second);
      return pieces;
    };
    return {{spec}, {spec}, "check of " + words, run};
  };
  TracedStep step = step_of(impl->spec());
  step.for_sizes = [=, spec = impl->spec()](c10::IntArrayRef sizes) { return step_of(with_whole_sizes(spec, sizes)); };
  return wrap(impl->spec(), add_step(step, impl->local_tensors()));
}

at::Tensor checked_indices(const char* op, const at::Tensor& index, int64_t dim, int64_t lowest, int64_t size) {
  return within(op, index, dim, lowest, size, [](const std::string& text) { TORCH_CHECK_INDEX(false, text); });
}

at::Tensor checked_positions(const char* op, const at::Tensor& index, int64_t dim, int64_t size) {
  return within(op, index, dim, 0, size, fail_as_gather);
}

std::vector<at::Tensor> moved_in_range(const char* op, std::vector<at::Tensor> operands,
                                       const std::function<c10::SmallVector<SpecPtr, 8>()>& wanted, int64_t dim,
                                       int64_t size) {
  const at::Tensor& index = operands[1];
  const MeshPtr& mesh = spec_of(index)->mesh();
  const std::vector<int64_t> sharding = mesh_dims_that_differ(spec_of(index)->placements());
  const bool may_travel = sharding.size() == 1 && mesh->size(sharding[0]) > 1 && !is_tracing();
  const auto layouts = may_travel ? wanted() : c10::SmallVector<SpecPtr, 8>();
  std::vector<size_t> moving;
  for (size_t i = 0; i < layouts.size(); ++i)
    if (moves_along(operands[i], layouts[i], sharding[0])) moving.push_back(i);
  if (moving.empty()) {
    operands[1] = checked_positions(op, index, dim, size);
    return operands;
  }
  const CommScope scope(op);
  OpSpan span;
  const auto [low, high] =
      range_of(index, std::nullopt, /*of_all_ranks=*/false).value_or(std::pair<int64_t, int64_t>(0, -1));
  Placements by_rank(mesh->ndim());
  by_rank[sharding[0]] = Placement::shard(0);
  const Dims sizes{mesh->size(sharding[0]), 2};
  std::vector<SpecPtr> from{Spec::intern(mesh, sizes, by_rank, row_major_strides(sizes), at::kLong)};
  std::vector<SpecPtr> to{from[0]->replicated()};
  std::vector<Shards> pieces(1);
  if (mesh->is_member()) pieces[0] = {at::tensor({low, high}, at::kLong).view({1, 2}).to(mesh->device())};
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
  if (mesh->is_member() && !mesh->is_meta()) {
    const at::Tensor bounds = moved[0][0].cpu();
    check_bounds(op, dim, 0, size, bounds.select(1, 0).min().item<int64_t>(), bounds.select(1, 1).max().item<int64_t>(),
                 fail_as_gather);
  }
  return operands;
}

}  // namespace shardwise
