#include "shardwise/module_calls.h"

#include "text/check.h"
#include "wrappers/plain_parts.h"

#include "runtime/api/module_values.h"
#include "runtime/dispatch/plain_operand.h"

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

using torch::nn::Module;

/// Layouts and claims by module. Entries end with their modules, claims also with their Worlds.
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
    Entry& entry = entry_of(module);
    const auto other = entry.world.lock();
    if (other && other != world) return other->rank();
    entry.world = world;
    return std::nullopt;
  }

  std::shared_ptr<CallLayouts> make(Module& module, const MeshPtr& mesh) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entry_of(module);
    SW_CHECK_VALUE(!entry.owner.expired(),
                   "[shardwise] no std::shared_ptr owns this {}. Make it with std::make_shared, or as a TORCH_MODULE.",
                   kind_of(module));
    if (!entry.layouts) entry.layouts = std::make_shared<CallLayouts>();
    if (!entry.layouts->mesh) entry.layouts->mesh = mesh;
    return entry.layouts;
  }

 private:
  struct Entry {
    std::weak_ptr<Module> owner;
    std::shared_ptr<CallLayouts> layouts;  // null without any
    std::weak_ptr<World> world;            // that has claimed the module
  };

  Entry& entry_of(Module& module) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.owner.expired(); });
    Entry& entry = entries_[&module];
    entry.owner = module.weak_from_this();
    return entry;
  }

  std::mutex mutex_;
  std::unordered_map<const Module*, Entry> entries_;
};

/// Throws: c10::ValueError if the mesh belongs to another thread.
void check_own(const char* op, const DeviceMesh& mesh) {
  const auto world = World::maybe_current();
  SW_CHECK_VALUE(!world || !World::is_thread() || world == mesh.world(),
                 "[{}] rank {} of another thread made the mesh {}. Make meshes and modules in the thread that uses "
                 "them, inside of run_ranks().",
                 op, mesh.rank(), to_string(mesh));
}

bool is_plain(const at::Tensor* tensor) { return tensor && tensor->defined() && !is_dtensor(*tensor); }

/// The layout of the value at `position`, or null.
const ValueLayout* layout_at(const std::vector<ValueLayout>& layouts, size_t position) {
  return position < layouts.size() ? &layouts[position] : nullptr;
}

/// `tensor`, a DTensor, as laid_out() gives it.
at::Tensor placed(const Module& module, const at::Tensor& tensor, const MeshPtr& mesh, const ValueLayout& value,
                  bool is_local) {
  if (value.wanted) check_same_mesh(kind_of(module), mesh->with_memory(), spec_of(tensor)->mesh()->with_memory());
  return laid_out(tensor, value.wanted, is_local);
}

/// The tensor of which each rank has the plain piece `local`. The ranks exchange the sizes: messages of unequal lengths would end the process.
at::Tensor from_piece(const Module& module, const at::Tensor& local, const MeshPtr& mesh, const ValueLayout& value) {
  const Placement& of_plain = *value.of_plain;
  if (!of_plain.divides() || !mesh->is_member()) return from_local(local, mesh, {of_plain});
  const int64_t dim = of_plain.dim() < 0 ? of_plain.dim() + local.dim() : of_plain.dim();
  const at::Tensor whole = joined_parts(local, dim, mesh, "forward");
  const bool is_known = value.n_features && shards_features(of_plain, local.dim());
  SW_CHECK_VALUE(!is_known || whole.size(dim) == *value.n_features,
                 "[forward] {} got plain pieces placed as {}, which have {} features together, but it takes {}. Give "
                 "each rank its own features, or set another layout: input_layouts(Replicate()).",
                 kind_of(module), to_string(of_plain), whole.size(dim), value.n_features.value_or(0));
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
    SW_CHECK_VALUE(!other,
                   "[{}] this {} is also sharded by rank {}, another thread. Ranks that are threads need a model each: "
                   "make it inside of run_ranks().",
                   op, kind_of(*item.value()), other.value_or(0));
  }
}

ModuleCall::ModuleCall(Module& module) : module_(module), layouts_(call_layouts_of(module)) {}

ModuleCall::~ModuleCall() {
  try {
    leave({}, /*are_all=*/true);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the forward's own error is on its way
  }
}

void ModuleCall::enter(const std::vector<at::Tensor*>& inputs, const std::vector<at::Tensor*>& tensors,
                       std::vector<ForwardArgument> others) {
  if (!layouts_) return;
  const MeshPtr& mesh = layouts_->mesh;
  if (layouts_->unit) {
    check_own("forward", *layouts_->unit->mesh());
    layouts_->unit->enter(module_, tensors);
    is_in_unit_ = true;
  }
  if (!mesh) return;
  check_own("forward", *mesh);
  lay_out(inputs);
  if (!ForwardScope::join(id_of(module_))) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (is_plain(inputs[i])) others.push_back({fmt::format("args[{}]", i), *inputs[i], "", ""});
    if (ImplicitReplication::is_on()) others.clear();
    if (!layouts_->compared || layouts_->compared->meshes()[0] != mesh)
      layouts_->compared = std::make_shared<ComparedCalls>(std::vector{mesh});
    ForwardScope::open(id_of(module_), kind_of(module_), layouts_->compared, others, {}, /*covers_other_meshes=*/false);
  }
  is_in_scope_ = true;
}

void ModuleCall::lay_out(const std::vector<at::Tensor*>& inputs) const {
  const MeshPtr& mesh = layouts_->mesh;
  for (const ModuleLayouts& style : layouts_->styles)
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueLayout* const value = layout_at(style.inputs, i);
      if (!value || !inputs[i] || !inputs[i]->defined()) continue;
      // A plain replica stays plain: operators within the forward treat it as a replica, because the ranks compared their arguments.
      if (is_plain(inputs[i]) && value->of_plain && !value->of_plain->is_whole())
        *inputs[i] = from_piece(module_, *inputs[i], mesh, *value);
      if (is_dtensor(*inputs[i])) *inputs[i] = placed(module_, *inputs[i], mesh, *value, style.use_local_inputs);
    }
}

at::Tensor ModuleCall::output(const at::Tensor& tensor, size_t position) const {
  if (!layouts_ || !tensor.defined()) return tensor;
  at::Tensor result = tensor;
  for (const ModuleLayouts& style : layouts_->styles) {
    const ValueLayout* const value = layout_at(style.outputs, position);
    if (!value) continue;
    if (is_plain(&result) && value->of_plain) result = from_piece(module_, result, layouts_->mesh, *value);
    if (is_dtensor(result)) result = placed(module_, result, layouts_->mesh, *value, style.use_local_output);
  }
  return result;
}

void ModuleCall::leave(const std::vector<at::Tensor*>& outputs, bool are_all) {
  if (std::exchange(is_in_scope_, false)) ForwardScope::leave(id_of(module_));
  if (std::exchange(is_in_unit_, false)) layouts_->unit->leave(module_, outputs, are_all);
}

}  // namespace shardwise
