#include "shardwise/module_calls.h"

#include "shardwise/local_parts.h"

#include "runtime/dispatch/plain_operand.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

using torch::nn::Module;

/// Layouts and claims by module. Entries end with their modules.
class CallTable {
 public:
  static CallTable& instance() {
    static auto* const table = new CallTable;  // never destroyed: modules may be called at exit
    return *table;
  }

  std::shared_ptr<CallLayouts> find(const Module& module) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&module);
    return found == entries_.end() || found->second.owner.expired() ? nullptr : found->second.layouts;
  }

  /// Claims `module` for `world`. Returns the rank of another World that has claimed it, or nullopt on success.
  std::optional<int64_t> claim(Module& module, const std::shared_ptr<World>& world) {
    const std::lock_guard lock(mutex_);
    std::erase_if(claims_,
                  [](const auto& claim) { return claim.second.owner.expired() || claim.second.world.expired(); });
    Claim& claim = claims_[&module];
    const auto other = claim.world.lock();
    if (other && other != world) return other->rank();
    claim = {module.weak_from_this(), world};
    return std::nullopt;
  }

  std::shared_ptr<CallLayouts> make(Module& module, const MeshPtr& mesh) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.owner.expired(); });
    Entry& entry = entries_[&module];
    if (!entry.layouts) {
      entry.owner = module.weak_from_this();
      TORCH_CHECK_VALUE(!entry.owner.expired(), fmt::format("[shardwise] no std::shared_ptr owns this {}. Make it with "
                                                            "std::make_shared, or as a TORCH_MODULE.",
                                                            kind_of(module)));
      entry.layouts = std::make_shared<CallLayouts>();
      entry.layouts->mesh = mesh;
    }
    return entry.layouts;
  }

 private:
  struct Entry {
    std::weak_ptr<Module> owner;
    std::shared_ptr<CallLayouts> layouts;
  };

  struct Claim {
    std::weak_ptr<Module> owner;
    std::weak_ptr<World> world;
  };

  std::mutex mutex_;
  std::unordered_map<const Module*, Entry> entries_;
  std::unordered_map<const Module*, Claim> claims_;
};

/// Throws: c10::ValueError if the mesh belongs to another thread.
void check_own(const char* op, const DeviceMesh& mesh) {
  const auto world = World::maybe_current();
  TORCH_CHECK_VALUE(
      !world || !World::is_thread() || world == mesh.world(),
      fmt::format("[{}] rank {} of another thread made the mesh {}. Make meshes and modules in the thread "
                  "that uses them, inside of run_ranks().",
                  op, mesh.rank(), to_string(mesh)));
}

int64_t id_of(const Module& module) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(&module)); }

bool is_plain(const at::Tensor* tensor) { return tensor && tensor->defined() && !is_dtensor(*tensor); }

/// The layout of the value at `position`, or null.
const ValueLayout* layout_at(const std::vector<ValueLayout>& layouts, size_t position) {
  return position < layouts.size() ? &layouts[position] : nullptr;
}

/// `tensor` placed as `wanted` along one mesh dim. If it is sharded along that tensor dim already, it keeps its sizes.
at::Tensor placed(const Module& module, const at::Tensor& tensor, const CallLayouts& layouts, const Placement& wanted) {
  const Spec& spec = *spec_of(tensor);
  check_same_mesh(kind_of(module), layouts.mesh->with_memory(), spec.mesh()->with_memory());
  const Placement& present = spec.placements()[layouts.mesh_dim];
  if (wanted.is_chunk() && present.is_alike(wanted.with_dim_from_zero(spec.dim()))) return tensor;
  Placements placements = spec.placements().vec();
  placements[layouts.mesh_dim] = wanted;
  return redistribute(tensor, spec.mesh(), std::move(placements), {.plan = {}, .async_op = true});
}

/// A DTensor from a plain value that is this rank's piece along the mesh dim of the style. Ranks exchange the sizes of pieces: otherwise different
/// sizes would go unnoticed, and messages of unequal lengths end the process.
at::Tensor from_piece(const Module& module, const at::Tensor& local, const CallLayouts& layouts,
                      const ValueLayout& value) {
  Placements placements(layouts.mesh->ndim());
  placements[layouts.mesh_dim] = *value.of_plain;
  if (value.of_plain->is_whole()) return from_local(local, layouts.mesh, std::move(placements));
  const at::Tensor whole = from_local_parts({local}, layouts.mesh, {placements})[0];
  if (value.whole_size && value.of_plain->divides() && layouts.mesh->is_member())
    TORCH_CHECK_VALUE(
        whole.size(value.of_plain->dim()) == *value.whole_size,
        fmt::format("[forward] {} got plain pieces placed as {}, which have {} features together, but it takes {}. "
                    "Give each rank its own features, or set another layout: input_layouts(Replicate()).",
                    kind_of(module), to_string(*value.of_plain), whole.size(value.of_plain->dim()), *value.whole_size));
  return whole;
}

}  // namespace

std::shared_ptr<CallLayouts> call_layouts_of(const Module& module) { return CallTable::instance().find(module); }

CallLayouts& make_call_layouts(Module& module, const MeshPtr& mesh) {
  return *CallTable::instance().make(module, mesh);
}

void claim_modules(const char* op, Module& module, const DeviceMesh& mesh) {
  check_own(op, mesh);
  for (const auto& item : module.named_modules()) {
    const auto other = CallTable::instance().claim(*item.value(), mesh.world());
    TORCH_CHECK_VALUE(!other, fmt::format("[{}] this {} is also sharded by rank {}, another thread. Ranks that are "
                                          "threads need a model each: make it inside of run_ranks().",
                                          op, kind_of(*item.value()), other.value_or(0)));
  }
}

ModuleCall::ModuleCall(Module& module) : module_(module), layouts_(call_layouts_of(module)) {}

ModuleCall::~ModuleCall() { restore(); }

void ModuleCall::lay_out_batch(const std::vector<at::Tensor*>& inputs) const {
  std::vector<at::Tensor*> plain;
  std::vector<at::Tensor> locals;
  std::vector<Placements> placements;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_plain(inputs[i]) || inputs[i]->dim() == 0) continue;
    Placements placed_as(layouts_->mesh->ndim());
    for (const ModuleLayouts& style : layouts_->styles)
      if (const auto* value = layout_at(style.inputs, i); value && value->of_plain)
        placed_as[layouts_->mesh_dim] = *value->of_plain;
    for (const int64_t mesh_dim : layouts_->batch_dims) placed_as[mesh_dim] = Shard(0);
    plain.push_back(inputs[i]);
    locals.push_back(*inputs[i]);
    placements.push_back(std::move(placed_as));
  }
  const auto parts = from_local_parts(locals, layouts_->mesh, placements);
  for (size_t i = 0; i < plain.size(); ++i) *plain[i] = parts[i];
}

void ModuleCall::enter(const std::vector<at::Tensor*>& inputs, std::vector<ForwardArgument> others) {
  if (!layouts_) return;
  check_own("forward", *layouts_->mesh);
  const bool is_outermost = !ForwardScope::is_open();
  if (is_outermost && !layouts_->batch_dims.empty()) lay_out_batch(inputs);
  for (const ModuleLayouts& style : layouts_->styles)
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueLayout* const value = layout_at(style.inputs, i);
      if (!value || !inputs[i] || !inputs[i]->defined()) continue;
      // A plain replica stays plain: operators within the forward treat it as a replica, because the ranks compared their arguments.
      if (is_plain(inputs[i]) && value->of_plain && !value->of_plain->is_whole()) {
        TORCH_CHECK_VALUE(
            layouts_->batch_dims.empty(),
            fmt::format("[forward] {} got a plain tensor as input {} within the forward of a fully sharded module: it "
                        "is unknown whether it is this rank's part of the batch. Give a DTensor: leave out "
                        "use_local_output(true), or wrap it with from_local_batch(x, mesh).",
                        kind_of(module_), i));
        *inputs[i] = from_piece(module_, *inputs[i], *layouts_, *value);
      }
      if (is_dtensor(*inputs[i]) && value->wanted) *inputs[i] = placed(module_, *inputs[i], *layouts_, *value->wanted);
      if (is_dtensor(*inputs[i]) && style.use_local_inputs) *inputs[i] = to_local(*inputs[i]);
    }
  if (!ForwardScope::join(id_of(module_))) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (is_plain(inputs[i])) others.push_back({fmt::format("args[{}]", i), *inputs[i], "", ""});
    if (ImplicitReplication::is_on()) others.clear();
    if (!layouts_->compared || layouts_->compared->meshes()[0] != layouts_->mesh)
      layouts_->compared = std::make_shared<ComparedCalls>(std::vector{layouts_->mesh});
    ForwardScope::open(id_of(module_), kind_of(module_), layouts_->compared, others);
  }
  is_open_ = true;
  gather();
}

void ModuleCall::gather() {
  if (layouts_->unit.empty() || layouts_->is_gathered) return;
  std::vector<at::Tensor> sharded;
  std::vector<Placements> placements;
  for (const GatheredParameter& parameter : layouts_->unit) {
    sharded.push_back(parameter.places[0].tensor());
    placements.push_back(parameter.placements);
  }
  const auto gathered = redistribute_many(sharded, placements);
  sharded_ = std::move(sharded);
  layouts_->is_gathered = true;
  for (size_t i = 0; i < gathered.size(); ++i)
    for (const ParameterPlace& place : layouts_->unit[i].places) place.replace(gathered[i]);
}

void ModuleCall::leave(bool gives_known_outputs) {
  if (!sharded_.empty() && layouts_->reshards_unit && gives_known_outputs && at::GradMode::is_enabled()) {
    std::vector<at::Tensor> gathered;
    for (const GatheredParameter& parameter : layouts_->unit) gathered.push_back(parameter.places[0].tensor());
    dropped_ = GatheredUnit::drop(gathered, sharded_);
  }
  restore();
}

void ModuleCall::restore() {
  if (!sharded_.empty()) layouts_->is_gathered = false;
  for (size_t i = 0; i < sharded_.size(); ++i)
    for (const ParameterPlace& place : layouts_->unit[i].places) place.replace(sharded_[i]);
  sharded_.clear();
  if (is_open_) ForwardScope::leave(id_of(module_));
  is_open_ = false;
}

at::Tensor ModuleCall::output(const at::Tensor& tensor, size_t position) const {
  if (!layouts_ || !tensor.defined()) return tensor;
  if (dropped_) dropped_->fetch_before_backward_of(tensor);
  at::Tensor result = tensor;
  for (const ModuleLayouts& style : layouts_->styles) {
    const ValueLayout* const value = layout_at(style.outputs, position);
    if (!value) continue;
    if (is_plain(&result) && value->of_plain) result = from_piece(module_, result, *layouts_, *value);
    if (is_dtensor(result) && value->wanted) result = placed(module_, result, *layouts_, *value->wanted);
    if (is_dtensor(result) && style.use_local_output) result = to_local(result);
  }
  return result;
}

}  // namespace shardwise
