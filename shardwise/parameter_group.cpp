#include "shardwise/parameter_group.h"

#include "shardwise/released_memory.h"

#include "runtime/api/redistribute.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/message_pattern.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/write_count.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace shardwise {
namespace {

constexpr const char* kNotGathered =
    "[fully_shard] a whole parameter is read while it is not gathered: outside the forward of its module, or in a "
    "backward that did not come by the module's outputs. Call module.unshard() before, or keep it with "
    "reshard_after_forward=False.";
constexpr size_t kAlignment = 64;  // bytes; a line of the cache

size_t aligned(size_t n_bytes) { return (n_bytes + kAlignment - 1) / kAlignment * kAlignment; }

c10::ScalarType computed_as(const at::Tensor& parameter, const GroupPrecision& precision) {
  return c10::isFloatingType(parameter.scalar_type()) && precision.param_dtype ? *precision.param_dtype
                                                                               : parameter.scalar_type();
}

/// A tensor of all memory behind `offset` (bytes) that it needs.
at::Tensor range_of(const c10::Storage& memory, size_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                    const at::TensorOptions& options) {
  at::Tensor result = at::empty({0}, options);
  const auto element_bytes = c10::elementSize(result.scalar_type());
  return result.set_(memory, static_cast<int64_t>(offset / element_bytes), sizes, strides);
}

/// This rank's piece, or the tensor itself where it is plain.
at::Tensor piece_of(const at::Tensor& tensor) {
  const auto* const impl = maybe_dtensor(tensor);
  return impl ? impl->shards()[0] : tensor.detach();
}

/// In which sums of gradients are kept: torch adds halves inexactly.
c10::ScalarType summed_as(c10::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

class GradientArrived final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientArrived(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  void operator()(const torch::autograd::Variable&) override { arrived_(); }

 private:
  std::function<void()> arrived_;
};

constexpr auto kGathering = [] { return "all_gather"; };
constexpr auto kReducing = [] { return "reduce_scatter"; };

}  // namespace

/// Counts the gradients of one backward. The hooks of the leaves hold it, which may outlive the group.
class ParameterGroup::Arrivals {
 public:
  void arrived() {
    if (n_arrived_++ == 0 && first_) first_();
    if (n_arrived_ < n_expected_) return;
    n_arrived_ = 0;
    if (all_) all_();
  }
  void restart() { n_arrived_ = 0; }
  void expect(size_t n_gradients) { n_expected_ = n_gradients; }
  void tell(std::function<void()> first, std::function<void()> all) {
    first_ = std::move(first);
    all_ = std::move(all);
  }

 private:
  size_t n_arrived_ = 0, n_expected_ = 0;
  std::function<void()> first_, all_;
};

/// Gradients on their way to those who have the parameter's part.
class ParameterGroup::Reduction {
 public:
  Reduction(const ParameterGroup& group, std::vector<at::Tensor> gradients)
      : messages_(group.wholes_[0].device()), gradients_(std::move(gradients)) {
    const Group& ranks = *group.data_.shard_group();
    for (size_t i = 0; i < gradients_.size(); ++i) {
      at::Tensor& gradient = gradients_[i];
      if (!gradient.defined()) continue;
      // A sum in a wider dtype of what was sent in a narrower one is the sum of the same terms.
      const auto& reduced_as = group.precision_.reduce_dtype;
      if (reduced_as && c10::elementSize(*reduced_as) < c10::elementSize(gradient.scalar_type()))
        gradient = gradient.to(*reduced_as);
      which_.push_back(i);
    }
    for (int64_t member = 0; member < ranks.size(); ++member) {
      if (member == ranks.index) continue;
      for (const size_t i : which_) {
        const DealtParameter& dealt = group.dealt_[i];
        messages_.send(ranks.ranks[member], dealt.part(gradients_[i], member));
        arrivals_.push_back(
            messages_.receive_apart(ranks.ranks[member], dealt.part_sizes(ranks.index), gradients_[i].scalar_type()));
      }
    }
    const CommScope scope("fully_shard", CommScope::Cause::kProgram);
    const MessagePattern pattern(kReducing);
    if (ranks.size() > 1) messages_.start(ranks);
  }

  const std::vector<size_t>& which() const { return which_; }

  /// Waits, and adds the parts of this rank, all ranks' in their order, into `sums[k]` for parameter `which()[k]`.
  void finish(const ParameterGroup& group, const std::vector<at::Tensor>& sums) {
    const Group& ranks = *group.data_.shard_group();
    messages_.finish();
    for (size_t k = 0; k < which_.size(); ++k) {
      const size_t i = which_[k];
      for (int64_t member = 0; member < ranks.size(); ++member) {
        const int64_t before = member < ranks.index ? member : member - 1;  // others before this one
        const at::Tensor term = member == ranks.index ? group.dealt_[i].part(gradients_[i], member)
                                                      : messages_.arrived(arrivals_[before * which_.size() + k]);
        if (member == 0)
          sums[k].copy_(term);
        else
          sums[k].add_(term);
      }
    }
    gradients_.clear();
  }

 private:
  PackedMessages messages_;
  std::vector<at::Tensor> gradients_;
  std::vector<size_t> which_;
  std::vector<size_t> arrivals_;  // by member but this one, then by which_
};

std::shared_ptr<ParameterGroup> ParameterGroup::create(const std::vector<std::string>& names,
                                                       const std::vector<at::Tensor>& parameters, const DataMesh& data,
                                                       const GroupPrecision& precision) {
  check_data_mesh(data);
  std::vector<DealtParameter> dealt;
  for (size_t i = 0; i < parameters.size(); ++i) dealt.emplace_back(names[i], parameters[i], data);
  std::vector<at::Tensor> sharded;
  for (size_t i = 0; i < parameters.size(); ++i) sharded.push_back(dealt[i].deal(parameters[i]));
  return std::shared_ptr<ParameterGroup>(
      new ParameterGroup(names, std::move(dealt), std::move(sharded), data, precision));
}

std::shared_ptr<ParameterGroup> ParameterGroup::with(const std::vector<at::Tensor>& sharded) const {
  for (size_t i = 0; i < sharded_.size(); ++i) {
    const Spec& known = *spec_of(sharded_[i]);
    const auto* const given = maybe_dtensor(sharded[i]);
    TORCH_CHECK_VALUE(given && given->spec()->layout() == known.layout() &&
                          given->spec()->mesh()->with_memory() == known.mesh()->with_memory(),
                      fmt::format("[fully_shard] {} was {}, and is {} now. Put a DTensor of the same layout there, or "
                                  "call fully_shard on the finished module.",
                                  names_[i], to_string(known), given ? to_string(*given->spec()) : "a plain tensor"));
  }
  return std::shared_ptr<ParameterGroup>(new ParameterGroup(names_, dealt_, sharded, data_, precision_));
}

ParameterGroup::ParameterGroup(std::vector<std::string> names, std::vector<DealtParameter> dealt,
                               std::vector<at::Tensor> sharded, DataMesh data, const GroupPrecision& precision)
    : names_(std::move(names)),
      dealt_(std::move(dealt)),
      sharded_(std::move(sharded)),
      data_(std::move(data)),
      precision_(precision),
      arrivals_(std::make_shared<Arrivals>()),
      accumulated_(sharded_.size()),
      is_unreplicated_(sharded_.size()) {
  if (data_.mesh->is_member() && !dealt_.empty()) make_memory();
}

ParameterGroup::~ParameterGroup() = default;

void ParameterGroup::make_memory() {
  const c10::InferenceMode not_inference(false);
  const at::NoGradGuard no_grad;
  std::vector<size_t> offsets;
  for (size_t i = 0; i < dealt_.size(); ++i) {
    offsets.push_back(n_bytes_);
    n_bytes_ +=
        aligned(c10::multiply_integers(dealt_[i].sizes()) * c10::elementSize(computed_as(sharded_[i], precision_)));
  }
  const c10::Device device = maybe_dtensor(sharded_[0])->shards()[0].device();
  memory_ = at::empty({static_cast<int64_t>(n_bytes_)}, at::TensorOptions(at::kByte).device(device)).storage();
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < dealt_.size(); ++i) {
    const auto dtype = computed_as(sharded_[i], precision_);
    const auto options = at::TensorOptions(dtype).device(device);
    const auto& dealt = dealt_[i];
    wholes_.push_back(range_of(memory_, offsets[i], dealt.sizes(), dealt.strides(), options));
    at::Tensor leaf = range_of(memory_, offsets[i], dealt.sizes(), dealt.strides(), options);
    if (const SpecPtr spec = dealt.whole_spec(dtype)) leaf = wrap(spec->on(device.type()), {leaf});
    leaf.requires_grad_(sharded_[i].requires_grad());
    leaves.push_back(std::move(leaf));
  }
  set_leaves(std::move(leaves));
  has_memory_ = device.is_meta() || !release_memory(*memory_.unsafeGetStorageImpl(), kNotGathered);
}

void ParameterGroup::set_leaves(std::vector<at::Tensor> leaves) {
  leaves_ = std::move(leaves);
  size_t n_trained = 0;
  for (const at::Tensor& leaf : leaves_) {
    if (!leaf.requires_grad()) continue;
    ++n_trained;
    torch::autograd::impl::set_post_acc_grad_hooks(
        leaf, std::make_unique<GradientArrived>([arrivals = arrivals_] { arrivals->arrived(); }));
  }
  arrivals_->expect(n_trained);
}

void ParameterGroup::on_gradients(std::function<void()> first, std::function<void()> all) {
  arrivals_->tell(std::move(first), std::move(all));
}

uint64_t ParameterGroup::n_writes() const {
  uint64_t result = 0;
  for (const at::Tensor& each : sharded_) result += write_count(*each.unsafeGetTensorImpl());
  return result;
}

bool ParameterGroup::is_stale() const { return state_ != State::kSharded && n_writes() != n_writes_; }

void ParameterGroup::check_has_memory() const {
  TORCH_CHECK_VALUE(!spec_of(sharded_[0])->mesh()->is_meta(),
                    fmt::format("[fully_shard] {} is on meta and has no values yet. Call "
                                "module.to_empty(device=\"{}\") and initialise it, or load a checkpoint.",
                                names_[0], c10::DeviceTypeName(data_.mesh->device_type(), true)));
}

at::Tensor ParameterGroup::own_part(size_t i) const {
  return maybe_dtensor(sharded_[i])->shards()[0].to(wholes_[i].scalar_type());
}

void ParameterGroup::start_gather() {
  if (state_ != State::kSharded || wholes_.empty()) return;
  check_has_memory();
  const c10::InferenceMode not_inference(false);
  const BelowAutograd guard;
  const uint64_t n_writes_now = n_writes();
  if (n_writes_now != n_writes_)  // what autograd saved of other values is an error to use
    for (const at::Tensor& leaf : leaves_) leaf.unsafeGetTensorImpl()->bump_version();
  n_writes_ = n_writes_now;
  if (!has_memory_)
    give_memory(*memory_.unsafeGetStorageImpl(), c10::GetAllocator(memory_.device_type())->allocate(n_bytes_));
  has_memory_ = true;
  const Group& ranks = *data_.shard_group();
  messages_ = std::make_unique<PackedMessages>(wholes_[0].device());
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < dealt_.size(); ++i) own.push_back(own_part(i));
  for (int64_t member = 0; member < ranks.size(); ++member) {
    if (member == ranks.index) continue;
    for (size_t i = 0; i < dealt_.size(); ++i) {
      if (!dealt_[i].is_sharded()) continue;
      messages_->receive(ranks.ranks[member], dealt_[i].part(wholes_[i], member));
      messages_->send(ranks.ranks[member], own[i]);
    }
  }
  const CommScope scope("fully_shard", CommScope::Cause::kProgram);
  const MessagePattern pattern(kGathering);
  if (ranks.size() > 1) messages_->start(ranks);
  state_ = State::kGathering;
  for (size_t i = 0; i < dealt_.size(); ++i) dealt_[i].part(wholes_[i], ranks.index).copy_(own[i]);
}

void ParameterGroup::gather() {
  if (wholes_.empty()) return;
  if (state_ != State::kGathered) {
    start_gather();
    finish_messages();
    state_ = State::kGathered;
  }
  if (!std::exchange(is_in_place_, true) && exchange_) exchange_(true);
}

void ParameterGroup::finish_messages() {
  if (!messages_) return;
  const c10::InferenceMode not_inference(false);
  const BelowAutograd guard;
  const auto messages = std::move(messages_);
  messages->finish();
}

void ParameterGroup::put_back() {
  if (std::exchange(is_in_place_, false) && exchange_) exchange_(false);
}

void ParameterGroup::release() {
  put_back();
  if (state_ == State::kSharded) return;
  finish_messages();
  state_ = State::kSharded;
  has_memory_ = !release_memory(*memory_.unsafeGetStorageImpl(), kNotGathered);
}

bool ParameterGroup::has_gradients() const {
  return std::ranges::any_of(leaves_, [](const at::Tensor& leaf) { return leaf.grad().defined(); });
}

std::vector<at::Tensor> ParameterGroup::take_gradients() {
  arrivals_->restart();
  std::vector<at::Tensor> result(leaves_.size()), unfinished;
  std::vector<Placements> placements;
  std::vector<size_t> places;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& gradient = leaves_[i].mutable_grad();
    if (!gradient.defined()) continue;
    result[i] = gradient.detach();
    gradient = at::Tensor();
    if (!is_dtensor(leaves_[i]) || spec_of(result[i])->layout() == spec_of(leaves_[i])->layout()) continue;
    unfinished.push_back(result[i]);  // a sum over the meshes beside
    placements.push_back(spec_of(leaves_[i])->placements().vec());
    places.push_back(i);
  }
  if (!unfinished.empty()) {
    const auto finished = redistribute_many(unfinished, placements);
    for (size_t k = 0; k < places.size(); ++k) result[places[k]] = finished[k];
  }
  for (at::Tensor& gradient : result)
    if (gradient.defined()) gradient = piece_of(gradient);
  return result;
}

void ParameterGroup::accumulate() {
  const at::NoGradGuard no_grad;
  auto gradients = take_gradients();
  const BelowAutograd guard;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const auto dtype = precision_.reduce_dtype.value_or(gradients[i].scalar_type());
    if (accumulated_[i].defined())
      accumulated_[i].add_(gradients[i]);
    else
      accumulated_[i] = gradients[i].to(dtype);
  }
}

void ParameterGroup::start_reduce(bool fills) {
  finish_reduce();
  const at::NoGradGuard no_grad;
  const c10::InferenceMode not_inference(false);
  auto gradients = take_gradients();
  const BelowAutograd guard;
  bool has_any = false;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (accumulated_[i].defined()) {
      if (gradients[i].defined()) accumulated_[i].add_(gradients[i]);
      gradients[i] = std::exchange(accumulated_[i], {});
    }
    if (!gradients[i].defined() && fills && leaves_[i].requires_grad())
      gradients[i] = at::zeros(wholes_[i].sizes(), wholes_[i].options());
    has_any |= gradients[i].defined();
  }
  if (has_any) reduction_ = std::make_unique<Reduction>(*this, std::move(gradients));
}

void ParameterGroup::finish_reduce() {
  if (!reduction_) return;
  const auto reduction = std::move(reduction_);
  const at::NoGradGuard no_grad;
  const c10::InferenceMode not_inference(false);
  const int64_t own = own_index();
  const auto& which = reduction->which();
  std::vector<at::Tensor> parts(sharded_.size());
  {
    const BelowAutograd guard;
    // One piece of memory for all: of replicas it is reduced once more, as a whole.
    const bool has_replicas = data_.replica_group() && data_.replica_group()->size() > 1;
    c10::ScalarType dtype = at::kFloat;
    for (const size_t i : which)
      dtype = c10::promoteTypes(dtype, summed_as(precision_.reduce_dtype.value_or(wholes_[i].scalar_type())));
    std::vector<int64_t> begins;
    int64_t n_elements = 0;
    for (size_t i = 0; i < dealt_.size(); ++i) {
      begins.push_back(n_elements);
      const bool counts = has_replicas || std::ranges::count(which, i) > 0;
      if (counts) n_elements += static_cast<int64_t>(aligned(dealt_[i].n_elements(own)));
    }
    const at::TensorOptions options = wholes_[0].options().dtype(dtype);
    at::Tensor flat = has_replicas ? at::zeros({n_elements}, options) : at::empty({n_elements}, options);
    const auto range = [&](size_t i) {
      const Dims sizes = dealt_[i].part_sizes(own);
      return flat.as_strided(sizes, dense_strides(sizes, dealt_[i].strides()), begins[i]);
    };
    std::vector<at::Tensor> sums;
    for (const size_t i : which) sums.push_back(range(i));
    reduction->finish(*this, sums);
    if (has_replicas) {
      if (unreplicated_.defined()) flat.add_(std::exchange(unreplicated_, {}));
      for (const size_t i : which) is_unreplicated_[i] = true;
      if (!all_reduces_) {
        unreplicated_ = flat;
        return;
      }
      const CommScope scope("fully_shard", CommScope::Cause::kProgram);
      all_reduce(*data_.replica_group(), flat, Reduce::kSum);
    }
    flat.div_(divide_factor_.value_or(static_cast<double>(data_.n_ranks())));
    for (const size_t i : which) parts[i] = range(i).to(sharded_[i].scalar_type());
    for (size_t i = 0; i < parts.size(); ++i)
      if (is_unreplicated_[i]) parts[i] = range(i).to(sharded_[i].scalar_type());
    is_unreplicated_.assign(parts.size(), false);
  }
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].defined()) deliver(i, parts[i]);
}

void ParameterGroup::deliver(size_t i, const at::Tensor& part) {
  const SpecPtr& spec = spec_of(sharded_[i]);
  const at::Tensor gradient = wrap(spec, {part});
  at::Tensor& known = sharded_[i].mutable_grad();
  if (known.defined())
    known.add_(gradient);
  else
    known = gradient;
  if (auto& hook = torch::autograd::impl::post_acc_grad_hooks(sharded_[i])) (*hook)(sharded_[i]);
}

void ParameterGroup::drop_gradients() {
  arrivals_->restart();
  reduction_.reset();
  unreplicated_ = at::Tensor();
  is_unreplicated_.assign(sharded_.size(), false);
  for (at::Tensor& each : accumulated_) each = at::Tensor();
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad() = at::Tensor();
}

}  // namespace shardwise
