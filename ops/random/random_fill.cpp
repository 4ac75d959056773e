#include "ops/random/random_fill.h"

#include "ops/support/dim_pieces.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/philox.h"
#include "runtime/api/random.h"
#include "runtime/dispatch/prepare_arguments.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// A generator for trial calls, which must not advance the caller's generator.
at::Generator& scratch_generator() {
  thread_local at::Generator generator = at::detail::createCPUGenerator();
  return generator;
}

}  // namespace

at::Tensor& draw_into(at::Tensor& self, const std::optional<at::Generator>& generator, const Distribution& distribution,
                      const std::function<void(at::Tensor&, const at::Generator&)>& dense) {
  const BelowAutograd guard;
  auto* impl = maybe_dtensor(self);
  const SpecPtr& spec = impl->spec();
  at::Tensor one = at::ones({1}, at::TensorOptions(spec->dtype()));
  dense(one, scratch_generator());
  check_writable("random numbers", spec->sizes(), spec->strides());
  if (spec->mesh()->is_meta()) return self;  // as torch, which draws nothing for meta tensors
  const uint64_t seed = next_seed(*spec->mesh(), generator);
  if (!impl->view_link() && !spec->layout().has_terms()) {
    const MemoryWrite write = impl->begin_write();
    fill_pieces(*impl, seed, distribution);
    return self;
  }
  const at::Tensor values = empty(spec->sizes(), spec->mesh(), without_partial(spec->placements()), spec->dtype());
  fill_pieces(*maybe_dtensor(values), seed, distribution);
  return self.copy_(values);
}

bool any_anywhere(const at::Tensor& flags) {
  const at::Tensor any = at::any(flags);
  const at::Tensor everywhere = moved_to(any, Placements(spec_of(any)->placements().size()));
  const Shards& pieces = maybe_dtensor(everywhere)->shards();
  return !pieces.empty() && !pieces[0].is_meta() && pieces[0].item<bool>();
}

}  // namespace shardwise
