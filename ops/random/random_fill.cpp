#include "ops/random/random_fill.h"

#include "ops/support/dim_pieces.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/philox.h"
#include "runtime/api/random.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/prepare_arguments.h"
#include "runtime/redistribute/traced_step.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

/// A generator for trial calls, which must not advance the caller's generator.
at::Generator& scratch_generator() {
  thread_local at::Generator generator = at::detail::createCPUGenerator();
  return generator;
}

/// All that a draw depends on besides its seed: the distribution's kind and bytes.
std::string words_of(const Distribution& distribution) {
  return std::visit(
      [&](const auto& each) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&each);
        return fmt::format("random numbers {} #{:02x}", distribution.index(),
                           fmt::join(bytes, bytes + sizeof each, ""));
      },
      distribution);
}

/// Numbers for a tensor of `spec`, without Partials, when the step runs. `sized`: its operand is a piece of the tensor, which has the sizes.
TracedStep step_of(const SpecPtr& spec, const std::optional<at::Generator>& generator, const Distribution& distribution,
                   bool sized) {
  const SpecPtr result = Spec::intern(spec->mesh(), spec->sizes(), without_partial(spec->placements()),
                                      row_major_strides(spec->sizes()), spec->dtype());
  TracedStep step{.results = {result}, .words = words_of(distribution), .call = [=](const Shards& /*pieces*/) {
                    const at::Tensor values =
                        empty(result->sizes(), result->mesh(), result->placements().vec(), result->dtype());
                    fill_pieces(*maybe_dtensor(values), next_seed(*result->mesh(), generator), distribution);
                    return maybe_dtensor(values)->shards();
                  }};
  if (!sized) return step;
  step.operands = {spec};
  step.for_sizes = [=](at::TensorList pieces) {
    return step_of(with_whole_sizes(spec, pieces[0].sizes()), generator, distribution, sized);
  };
  return step;
}

/// The numbers; in a traced program they are drawn when the graph runs.
at::Tensor drawn(const DTensorImpl& like, const std::optional<at::Generator>& generator,
                 const Distribution& distribution) {
  const bool sized = like.symbols();
  const TracedStep step = step_of(like.spec(), generator, distribution, sized);
  if (!is_tracing()) return wrap(step.results[0], step.call({}));
  if (generator && generator->defined()) check_not_traced("random numbers of a generator");
  return wrap(step.results[0], add_step(step, sized ? like.local_tensors() : Shards()));
}

}  // namespace

at::Tensor& draw_into(at::Tensor& self, const std::optional<at::Generator>& generator, const Distribution& distribution,
                      const std::function<void(at::Tensor&, const at::Generator&)>& dense) {
  const BelowAutograd guard;
  auto* impl = maybe_dtensor(self);
  const SpecPtr& spec = impl->spec();
  {
    const OutsideTracers outside;
    at::Tensor one = at::ones({1}, at::TensorOptions(spec->dtype()));
    dense(one, scratch_generator());
  }
  check_writable("random numbers", spec->sizes(), spec->strides());
  if (spec->mesh()->is_meta()) return self;  // as torch, which draws nothing for meta tensors
  if (impl->view_link() || spec->layout().has_terms() || is_tracing())
    return self.copy_(drawn(*impl, generator, distribution));
  const uint64_t seed = next_seed(*spec->mesh(), generator);
  const MemoryWrite write = impl->begin_write();
  fill_pieces(*impl, seed, distribution);
  return self;
}

bool any_anywhere(const at::Tensor& flags) {
  check_not_traced("a check of values");
  const at::Tensor any = at::any(flags);
  const at::Tensor everywhere = moved_to(any, Placements(spec_of(any)->placements().size()));
  const Shards& pieces = maybe_dtensor(everywhere)->shards();
  return !pieces.empty() && !pieces[0].is_meta() && pieces[0].item<bool>();
}

}  // namespace shardwise
