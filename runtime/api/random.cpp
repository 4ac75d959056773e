#include "runtime/api/random.h"

#include "placements/placement_list.h"
#include "runtime/api/philox.h"
#include "runtime/api/rank_generator.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/CPUGeneratorImpl.h>

namespace shardwise {
namespace {

/// The next 64 bits of `generator`. A device's generator has an offset in a sequence instead of a state.
uint64_t draw(at::Generator& generator) {
  if (generator.device().is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  constexpr uint64_t kStep = 4;  // offsets are multiples of 4
  const uint64_t place = generator.get_offset();
  generator.set_offset(place + kStep);
  return RandomStream(generator.current_seed(), place).bits();
}

uint64_t locked_draw(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return draw(generator);
}

/// A draw from `shared`, or from this thread's copy if the rank is a thread.
uint64_t default_draw(at::Generator shared) {
  const std::lock_guard lock(shared.mutex());
  return draw(World::is_thread() ? rank_generator(shared) : shared);
}

void compare_seeds(const DeviceMesh& mesh, uint64_t seed) {
  if (!mesh.is_member() || mesh.size() == 1) return;
  const auto layouts = [&] {
    return fmt::format("random numbers on {} from seed {}: call torch.manual_seed alike on all ranks", to_string(mesh),
                       seed);
  };
  const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram, layouts);
  Communication(*mesh.group(), {.name = "draw"}).finish();
}

void check_drawable(const char* op, const Placements& placements, at::ScalarType dtype) {
  SW_CHECK_VALUE(mesh_dims_with_terms(placements).empty(), "[{}] cannot draw a tensor as {}. Use Shard or Replicate.",
                 op, to_string(placements));
  SW_CHECK_TYPE(c10::isFloatingType(dtype), "[{}] draws no {} numbers. Use a floating-point dtype.", op,
                c10::toString(dtype));
}

/// A new tensor, drawn for the operator `op`.
at::Tensor drawn(const char* op, c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements,
                 at::ScalarType dtype, const Distribution& distribution) {
  check_drawable(op, placements, dtype);
  at::Tensor tensor = empty(sizes, mesh, std::move(placements), dtype);
  if (mesh->is_meta()) return tensor;
  const uint64_t seed = next_seed(*mesh);
  BelowAutograd guard;
  fill_pieces(*maybe_dtensor(tensor), seed, distribution);
  return tensor;
}

}  // namespace

uint64_t next_seed(const DeviceMesh& mesh, const std::optional<at::Generator>& generator) {
  check_not_traced("random numbers");
  const at::Generator& shared = at::detail::getDefaultCPUGenerator();
  const bool is_given = generator && generator->defined() && *generator != shared;
  const uint64_t seed = is_given ? locked_draw(*generator) : default_draw(shared);
  if (checks_order()) compare_seeds(mesh, seed);
  return seed;
}

at::Tensor rand(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  return drawn("rand", sizes, mesh, std::move(placements), dtype, Uniform{});
}

at::Tensor randn(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  return drawn("randn", sizes, mesh, std::move(placements), dtype, Normal{});
}

}  // namespace shardwise
