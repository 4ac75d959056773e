#include "wrappers/fsdp/parameter_group.h"

#include "runtime/api/redistribute.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/subclass.h"
#include "text/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

c10::ScalarType computed_as(const at::Tensor& parameter, const GroupPrecision& precision) {
  return c10::isFloatingType(parameter.scalar_type()) && precision.param_dtype ? *precision.param_dtype
                                                                               : parameter.scalar_type();
}

/// The dtype in which gradients of `dtype` are reduced over the ranks. Complex gradients stay complex, as parameters do.
c10::ScalarType reduced_as(c10::ScalarType dtype, const GroupPrecision& precision) {
  return c10::isFloatingType(dtype) ? precision.reduce_dtype.value_or(dtype) : dtype;
}

/// The dtype of sums of gradients: float32 for half precision, in which torch's sums are inexact.
c10::ScalarType summed_as(c10::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

/// Turns off recording and the program's inference mode and transforms of torch.func, which are for the program's tensors.
struct ModesOff {
  const c10::InferenceMode not_inference{false};
  const OutsideTransforms not_transformed;
  const at::NoGradGuard no_grad;  // the last, because InferenceMode turns recording on
};

struct GradientArrived final : torch::autograd::PostAccumulateGradHook {
  explicit GradientArrived(std::shared_ptr<GradientCallbacks> callbacks) : callbacks(std::move(callbacks)) {}
  void operator()(const torch::autograd::Variable&) override {
    if (!std::exchange(callbacks->has_arrived, true) && callbacks->first) callbacks->first();
  }

  std::shared_ptr<GradientCallbacks> callbacks;
};

struct GradientComes final : torch::autograd::FunctionPreHook {
  explicit GradientComes(std::shared_ptr<GradientCallbacks> callbacks) : callbacks(std::move(callbacks)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (callbacks->before) callbacks->before();
    return gradients;
  }

  std::shared_ptr<GradientCallbacks> callbacks;
};

}  // namespace

std::shared_ptr<ParameterGroup> ParameterGroup::create(const std::vector<std::string>& names,
                                                       const std::vector<at::Tensor>& parameters, const MeshPtr& mesh,
                                                       const GroupPrecision& precision, const Placements& along) {
  const DataMesh data = data_mesh(mesh, parameters);
  std::vector<ShardedParameter> split;
  for (size_t i = 0; i < parameters.size(); ++i)
    split.emplace_back(names[i], parameters[i], data, along.empty() ? default_split(parameters[i], mesh) : along[i]);
  std::vector<at::Tensor> sharded;
  for (size_t i = 0; i < parameters.size(); ++i) sharded.push_back(split[i].part_of(parameters[i]));
  std::shared_ptr<ParameterGroup> result(
      new ParameterGroup(names, std::move(split), std::move(sharded), data, precision));
  if (data.mesh->is_member()) result->number_ = data.shard_group()->record->next_number("ParameterGroup");
  return result;
}

std::shared_ptr<ParameterGroup> ParameterGroup::with(const std::vector<at::Tensor>& sharded) const {
  for (size_t i = 0; i < sharded_.size(); ++i) {
    const Spec& known = *spec_of(sharded_[i]);
    const auto* const given = maybe_dtensor(sharded[i]);
    SW_CHECK_VALUE(given && given->spec()->layout() == known.layout() &&
                       given->spec()->mesh()->with_memory() == known.mesh()->with_memory(),
                   "[fully_shard] {} was {}, and is {} now. Put a DTensor of the same layout there, or call "
                   "fully_shard on the finished module.",
                   names_[i], to_string(known), given ? to_string(*given->spec()) : "a plain tensor");
  }
  std::shared_ptr<ParameterGroup> result(new ParameterGroup(names_, parameters_, sharded, data_, precision_));
  result->number_ = number_;
  result->divide_factor_ = divide_factor_;
  result->all_reduces_ = all_reduces_;
  result->reduced_ = reduced_;
  result->was_accumulated_ = was_accumulated_;
  for (size_t i = 0; i < accumulated_.size(); ++i) {
    if (!accumulated_[i].defined()) continue;
    const auto options = result->gradient_options(i);
    result->accumulated_[i] =
        accumulated_[i].to(options.device(), reduced_as(c10::typeMetaToScalarType(options.dtype()), precision_));
  }
  if (unreplicated_.defined()) result->unreplicated_ = unreplicated_.to(result->memory_->device());
  return result;
}

ParameterGroup::ParameterGroup(std::vector<std::string> names, std::vector<ShardedParameter> split,
                               std::vector<at::Tensor> sharded, DataMesh data, const GroupPrecision& precision)
    : names_(std::move(names)),
      parameters_(std::move(split)),
      sharded_(std::move(sharded)),
      data_(std::move(data)),
      precision_(precision),
      classes_(names_, parameters_, sharded_),
      accumulated_(sharded_.size()) {
  if (data_.mesh->is_member() && !parameters_.empty()) make_memory();
}

void ParameterGroup::make_memory() {
  const ModesOff modes_off;
  const c10::Device device = maybe_dtensor(sharded_[0])->local_tensors()[0].device();
  memory_ = std::make_unique<GatheredMemory>(device);
  std::vector<GatheredLayout> layouts;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!classes_.contains(i))
      layouts.push_back({parameters_[i].split(), Dims(parameters_[i].sizes()), Dims(parameters_[i].strides()),
                         computed_as(sharded_[i], precision_)});
  memory_->add(std::move(layouts));
  std::vector<at::Tensor> leaves;
  size_t number = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto dtype = computed_as(sharded_[i], precision_);
    at::Tensor leaf =
        classes_.contains(i) ? at::empty({0}, at::TensorOptions(dtype).device(device)) : memory_->tensor(number++);
    if (const SpecPtr spec = parameters_[i].whole_spec(dtype); spec && !classes_.contains(i))
      leaf = wrap(spec->on(device.type()), {leaf});
    leaf.requires_grad_(sharded_[i].requires_grad());
    leaves.push_back(std::move(leaf));
  }
  set_leaves(std::move(leaves));
}

at::TensorOptions ParameterGroup::gradient_options(size_t i) const {
  return at::TensorOptions(leaves_[i].scalar_type()).device(memory_->device());
}

void ParameterGroup::set_leaves(std::vector<at::Tensor> leaves) {
  leaves_ = std::move(leaves);
  listen();
}

void ParameterGroup::follow_requires_grad() {
  bool has_changed = false;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].requires_grad() == sharded_[i].requires_grad()) continue;
    leaves_[i].requires_grad_(sharded_[i].requires_grad());
    has_changed = true;
  }
  if (has_changed) listen();
}

void ParameterGroup::listen() {
  for (const at::Tensor& leaf : leaves_) {
    if (!leaf.requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<GradientArrived>(callbacks_));
    const auto is_ours = [](const auto& hook) { return dynamic_cast<GradientComes*>(hook.get()) != nullptr; };
    auto& hooks = torch::autograd::impl::hooks(leaf);
    if (std::ranges::none_of(hooks, is_ours)) hooks.push_back(std::make_unique<GradientComes>(callbacks_));
  }
}

uint64_t ParameterGroup::n_writes() const {
  uint64_t result = 0;
  for (const at::Tensor& each : sharded_) result += maybe_dtensor(each)->memory()->n_writes();
  return result;
}

std::string ParameterGroup::words(const char* what, c10::ArrayRef<size_t> which, bool is_gather) const {
  std::vector<std::string> parameters;
  for (const size_t i : which)
    parameters.push_back(
        fmt::format("{} {} sent as {}", names_[i], to_string(*spec_of(sharded_[i])),
                    is_gather && classes_.contains(i) ? classes_.sent_as(i) : c10::toString(leaves_[i].scalar_type())));
  return fmt::format("{} of group {}: {}", what, number_, fmt::join(parameters, ", "));
}

bool ParameterGroup::is_stale() const { return state_ != State::kSharded && n_writes() != n_writes_; }

std::vector<at::Tensor> ParameterGroup::own_parts() {
  std::vector<at::Tensor> result;
  {
    const BelowAutograd guard;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (!classes_.contains(i))
        result.push_back(maybe_dtensor(sharded_[i])->shards()[0].to(computed_as(sharded_[i], precision_)));
  }
  classes_.take_pieces(*data_.shard_group(), *memory_, result);
  return result;
}

std::vector<at::Tensor> ParameterGroup::take_own() {
  SW_CHECK_VALUE(data_.mesh->is_meta() || !spec_of(sharded_[0])->mesh()->is_meta(),
                 "[fully_shard] {} is on meta and has no values yet. Call module.to_empty(device=\"{}\") and "
                 "initialise it, or load a checkpoint.",
                 names_[0], c10::DeviceTypeName(data_.mesh->device_type(), true));
  const uint64_t n_writes_now = n_writes();
  const bool were_written = n_writes_now != n_writes_;
  if (were_written) memory_->drop_slices();
  auto own = memory_->has_slices() ? memory_->slices() : own_parts();
  if (were_written)
    for (const at::Tensor& leaf : leaves_)  // tensors that autograd saved with the old values become errors
      leaf.unsafeGetTensorImpl()->bump_version();
  n_writes_ = n_writes_now;
  return own;
}

void ParameterGroup::start_gathers(const std::vector<ParameterGroup*>& groups) {
  const ModesOff modes_off;
  std::vector<GatheredMemory::Gather> gathers;
  for (ParameterGroup* const group : groups) gathers.push_back({*group->memory_, group->take_own()});
  const BelowAutograd guard;
  const auto layouts = [&] {
    std::vector<std::string> texts;
    for (const ParameterGroup* const group : groups) {
      std::vector<size_t> which(group->parameters_.size());
      std::iota(which.begin(), which.end(), size_t{0});
      texts.push_back(
          group->words(group->memory_->has_slices() ? "gather of slices" : "gather", which, /*is_gather=*/true));
    }
    return fmt::format("{}", fmt::join(texts, "; "));
  };
  const CommScope scope("fully_shard", CommScope::Cause::kProgram, layouts);
  GatheredMemory::start(*groups[0]->data_.shard_group(), gathers);
  for (ParameterGroup* const group : groups) group->state_ = State::kGathering;
}

void ParameterGroup::gather() {
  if (!memory_) return;
  if (state_ != State::kGathered) {
    start_gather();
    const ModesOff modes_off;
    {
      const BelowAutograd guard;
      memory_->finish();
    }
    try {
      if (classes_.make_wholes(*memory_, leaves_)) listen();
    } catch (...) {
      free_memory();
      throw;
    }
    state_ = State::kGathered;
  }
  if (!std::exchange(is_in_place_, true) && exchange_) exchange_(true);
}

void ParameterGroup::release() {
  if (memory_) memory_->drop_slices();
  free_memory();
}

void ParameterGroup::release_to(int64_t n_ranks) {
  if (state_ == State::kGathered) {
    const ModesOff modes_off;
    const BelowAutograd guard;
    memory_->keep_slices(*data_.shard_group(), n_ranks);
  }
  free_memory();
}

void ParameterGroup::free_memory() {
  put_back();
  if (state_ == State::kSharded) return;
  state_ = State::kSharded;
  const ModesOff modes_off;
  const BelowAutograd guard;
  memory_->release();
  classes_.release();
}

bool ParameterGroup::has_gradients() const {
  return std::ranges::any_of(leaves_, [](const at::Tensor& leaf) { return leaf.grad().defined(); });
}

bool ParameterGroup::has_accumulated() const {
  return std::ranges::any_of(accumulated_, [](const at::Tensor& sum) { return sum.defined(); });
}

bool ParameterGroup::awaits_all_reduce() const {
  return all_reduces_ && unreplicated_.defined() && !reduction_ &&
         std::ranges::any_of(leaves_, [](const at::Tensor& leaf) { return leaf.requires_grad(); });
}

std::vector<at::Tensor> ParameterGroup::take_gradients() {
  callbacks_->has_arrived = false;
  std::vector<at::Tensor> result(leaves_.size()), unfinished;
  std::vector<Placements> placements;
  std::vector<size_t> places;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& gradient = leaves_[i].mutable_grad();
    if (!gradient.defined()) continue;
    result[i] = gradient.detach();
    gradient = at::Tensor();
    if (!is_dtensor(leaves_[i]) || spec_of(result[i])->layout() == spec_of(leaves_[i])->layout()) continue;
    unfinished.push_back(result[i]);  // Partial on other mesh dims
    placements.push_back(spec_of(leaves_[i])->placements().vec());
    places.push_back(i);
  }
  if (!unfinished.empty()) {
    const auto finished = redistribute_many(unfinished, placements);
    for (size_t k = 0; k < places.size(); ++k) result[places[k]] = finished[k];
  }
  for (at::Tensor& gradient : result) {
    if (!gradient.defined()) continue;
    if (const auto* const impl = maybe_dtensor(gradient)) gradient = at::Tensor(impl->shards()[0]);
    if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();  // of an embedding with sparse=True
    if (is_subclass(gradient))  // of a subclass parameter: converted by its aten.copy_
      gradient = at::empty(gradient.sizes(), at::TensorOptions(gradient.scalar_type()).device(memory_->device()))
                     .copy_(gradient);
  }
  return result;
}

void ParameterGroup::accumulate() {
  const ModesOff modes_off;
  was_accumulated_ = true;
  auto gradients = take_gradients();
  const BelowAutograd guard;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (accumulated_[i].defined())
      accumulated_[i].add_(gradients[i]);
    else
      accumulated_[i] = gradients[i].to(reduced_as(gradients[i].scalar_type(), precision_));
  }
}

void ParameterGroup::start_reduce(bool fills) {
  finish_reduce();
  const ModesOff modes_off;
  auto gradients = take_gradients();
  const BelowAutograd guard;
  const bool were_accumulated = std::exchange(was_accumulated_, false);
  std::vector<bool> has;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (accumulated_[i].defined()) {
      if (gradients[i].defined()) accumulated_[i].add_(gradients[i]);
      gradients[i] = std::exchange(accumulated_[i], {});
    }
    has.push_back(gradients[i].defined() || (fills && leaves_[i].requires_grad()));
  }
  if (std::ranges::count(has, true) == 0 && !awaits_all_reduce()) return;
  for (size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor& gradient = gradients[i];
    if (!gradient.defined() && !leaves_[i].requires_grad()) continue;
    if (!gradient.defined()) gradient = at::zeros(parameters_[i].sizes(), gradient_options(i));  // others may have one
    // Casting to a narrower dtype before sending saves bytes; the sum in a wider dtype has the same terms.
    const auto dtype = reduced_as(gradient.scalar_type(), precision_);
    if (were_accumulated || c10::elementSize(dtype) < c10::elementSize(gradient.scalar_type()))
      gradient = gradient.to(dtype);
  }
  std::vector<size_t> which;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) which.push_back(i);
  const auto layouts = [&] { return words("gradients", which); };
  const CommScope scope("fully_shard", CommScope::Cause::kProgram, layouts);
  reduction_ = std::make_unique<GradientReduction>(*data_.shard_group(), parameters_, std::move(gradients), has);
}

void ParameterGroup::finish_reduce() {
  if (!reduction_) return;
  const auto reduction = std::move(reduction_);
  const ModesOff modes_off;
  const int64_t own = data_.shard_group()->index;
  const auto& which = reduction->which();
  std::vector<at::Tensor> parts(sharded_.size());
  {
    const BelowAutograd guard;
    // One block of memory for all sums, so that one all-reduce among replicas covers them.
    const bool has_replicas = data_.replica_group() && data_.replica_group()->size() > 1;
    c10::ScalarType dtype = at::kFloat;
    for (const size_t i : which)
      dtype = c10::promoteTypes(dtype, summed_as(reduced_as(leaves_[i].scalar_type(), precision_)));
    std::vector<int64_t> begins;
    int64_t n_elements = 0;
    for (const size_t i : which) {
      begins.push_back(n_elements);
      n_elements += static_cast<int64_t>(aligned(c10::multiply_integers(parameters_[i].part_sizes(own))));
    }
    const int64_t n_flags = has_replicas ? static_cast<int64_t>(which.size()) : 0;
    const auto options = at::TensorOptions(dtype).device(memory_->device());
    // Zeros between the sums, because they are sent, too, or a hook may read them.
    at::Tensor flat =
        has_replicas || reduced_ ? at::zeros({n_elements + n_flags}, options) : at::empty({n_elements}, options);
    std::vector<at::Tensor> sums;
    for (size_t k = 0; k < which.size(); ++k) {
      const Dims sizes = parameters_[which[k]].part_sizes(own);
      sums.push_back(flat.as_strided(sizes, dense_strides(sizes, parameters_[which[k]].strides()), begins[k]));
    }
    auto has = reduction->finish(sums);
    if (has_replicas) {
      const at::Tensor flags = flat.narrow(0, n_elements, n_flags);  // summed over replicas: how many have a gradient
      flags.copy_(at::tensor(has, at::TensorOptions(at::kByte)));
      if (unreplicated_.defined()) flat.add_(std::exchange(unreplicated_, {}));
      if (!all_reduces_) {
        unreplicated_ = flat;
        return;
      }
      const auto layouts = [&] { return words("gradients among replicas", which); };
      const CommScope scope("fully_shard", CommScope::Cause::kProgram, layouts);
      all_reduce(*data_.replica_group(), flat, Reduce::kSum);
      if (std::ranges::count(has, 0) > 0 && !flags.is_meta()) {
        const at::Tensor known = at::real(flags).ne(0).cpu();
        for (size_t k = 0; k < which.size(); ++k) has[k] = known.const_data_ptr<bool>()[k];
      }
    }
    flat.div_(divide_factor_.value_or(static_cast<double>(data_.n_ranks())));
    if (reduced_) reduced_(flat.narrow(0, 0, n_elements));
    for (size_t k = 0; k < which.size(); ++k)
      if (has[k]) {
        const c10::ScalarType as = sharded_[which[k]].scalar_type();
        parts[which[k]] = (c10::isComplexType(as) ? sums[k] : at::real(sums[k])).to(as);
      }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) continue;
    const at::Tensor gradient = wrap(spec_of(sharded_[i]), {parts[i]});
    at::Tensor& known = sharded_[i].mutable_grad();
    if (known.defined())
      known.add_(gradient);
    else
      known = gradient;
    if (auto& hook = torch::autograd::impl::post_acc_grad_hooks(sharded_[i])) (*hook)(sharded_[i]);
  }
}

void ParameterGroup::drop_gradients() {
  callbacks_->has_arrived = false;
  reduction_.reset();
  unreplicated_ = at::Tensor();
  was_accumulated_ = false;
  for (at::Tensor& each : accumulated_) each = at::Tensor();
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad() = at::Tensor();
}

}  // namespace shardwise
