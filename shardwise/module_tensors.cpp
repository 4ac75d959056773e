#include "shardwise/module_tensors.h"

#include "text/check.h"
#include "wrappers/parallel_modules.h"

#include <torch/nn/modules.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace shardwise {
namespace {

using torch::nn::Module;

/// Gives access to a protected member of torch::nn::Module.
struct RegisteredParameters : Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(Module& module) {
    return module.*(&RegisteredParameters::parameters_);
  }
};

/// An RNN's forward reads its parameters from a list.
template <class Rnn>
struct FlatWeights : Rnn {
  static std::optional<std::vector<at::Tensor*>> of(Module& module) {
    auto* const rnn = dynamic_cast<Rnn*>(&module);
    if (!rnn) return std::nullopt;
    std::vector<at::Tensor*> result;
    for (at::Tensor& weight : rnn->*(&FlatWeights::flat_weights_)) result.push_back(&weight);
    return result;
  }
};

class KnownMembers {
 public:
  static KnownMembers& instance() {
    static auto* const known = new KnownMembers;  // never destroyed: may be read at exit
    return *known;
  }

  void add(MembersOf members_of) {
    const std::lock_guard lock(mutex_);
    known_.push_back(std::move(members_of));
  }

  /// The members of every known class that `module` is an instance of; nullopt if there is none.
  std::optional<std::vector<at::Tensor*>> of(Module& module) {
    const std::lock_guard lock(mutex_);
    std::optional<std::vector<at::Tensor*>> result;
    for (const MembersOf& members_of : known_) {
      const auto members = members_of(module);
      if (!members) continue;
      if (!result) result.emplace();
      result->insert(result->end(), members->begin(), members->end());
    }
    return result;
  }

 private:
  KnownMembers() { add_torchs(); }

  template <class... Modules>
  void add_weight_and_bias() {
    (add(members_of_class<Modules>({&Modules::weight, &Modules::bias})), ...);
  }
  template <class... Modules>
  void add_weight() {
    (add(members_of_class<Modules>({&Modules::weight})), ...);
  }
  template <class... Cells>
  void add_cells() {
    (add(members_of_class<Cells>({&Cells::weight_ih, &Cells::weight_hh, &Cells::bias_ih, &Cells::bias_hh})), ...);
  }

  void add_torchs() {
    using namespace torch::nn;  // NOLINT(google-build-using-namespace)
    add_weight_and_bias<LinearImpl, BilinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                        ConvTranspose2dImpl, ConvTranspose3dImpl, LayerNormImpl, GroupNormImpl, BatchNorm1dImpl,
                        BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl>();
    add_weight<EmbeddingImpl, EmbeddingBagImpl, PReLUImpl>();
    add_cells<RNNCellImpl, LSTMCellImpl, GRUCellImpl>();
    add(&FlatWeights<RNNImpl>::of);
    add(&FlatWeights<LSTMImpl>::of);
    add(&FlatWeights<GRUImpl>::of);
    using Attention = MultiheadAttentionImpl;
    add(members_of_class<Attention>({&Attention::in_proj_weight, &Attention::in_proj_bias, &Attention::bias_k,
                                     &Attention::bias_v, &Attention::q_proj_weight, &Attention::k_proj_weight,
                                     &Attention::v_proj_weight}));
    add(members_of_class<ParameterListImpl>({}));
    add(members_of_class<ParameterDictImpl>({}));
    add_weight_and_bias<ColumnParallelLinearImpl, RowParallelLinearImpl>();
    add_weight<ParallelEmbeddingImpl>();
  }

  std::mutex mutex_;
  std::vector<MembersOf> known_;
};

bool is_registered_in(Module& module, const at::Tensor& tensor) {
  return std::ranges::any_of(RegisteredParameters::of(module),
                             [&](const auto& item) { return item.value().is_same(tensor); });
}

/// True if a known member is set to a tensor that the module did not register.
bool has_member_from_elsewhere(Module& module) {
  const auto members = KnownMembers::instance().of(module).value_or(std::vector<at::Tensor*>());
  return std::ranges::any_of(
      members, [&](const at::Tensor* each) { return each->defined() && !is_registered_in(module, *each); });
}

/// Parameters that a program assigned to members of a module without registering them there.
struct AssignedMembers {
  std::vector<std::pair<const c10::TensorImpl*, size_t>>
      places;                       // a parameter of another module, and the index of the member
  std::vector<std::string> unread;  // registered parameters that they replace, by place; empty if ambiguous

  AssignedMembers(Module& module, const std::unordered_set<const c10::TensorImpl*>& registered) {
    const auto members = KnownMembers::instance().of(module).value_or(std::vector<at::Tensor*>());
    for (size_t i = 0; i < members.size(); ++i) {
      const at::Tensor& member = *members[i];
      if (member.defined() && registered.contains(member.unsafeGetTensorImpl()) && !is_registered_in(module, member))
        places.emplace_back(member.unsafeGetTensorImpl(), i);
    }
    if (places.empty()) return;
    for (const auto& parameter : RegisteredParameters::of(module))
      if (parameter.value().defined() &&
          std::ranges::none_of(members, [&](const at::Tensor* each) { return each->is_same(parameter.value()); }))
        unread.push_back(parameter.key());
    if (unread.size() != places.size()) unread.clear();
  }
};

}  // namespace

bool declare_members(MembersOf members_of) {
  KnownMembers::instance().add(std::move(members_of));
  return true;
}

const at::Tensor& ParameterPlace::tensor() const {
  return member ? *KnownMembers::instance().of(*module)->at(*member) : RegisteredParameters::of(*module)[name];
}

bool ParameterPlace::is_replaceable() const {
  if (member) return true;
  const auto members = KnownMembers::instance().of(*module);
  if (!members) return false;
  const at::Tensor& registered = tensor();
  return members->empty() ||
         std::ranges::any_of(*members, [&](const at::Tensor* each) { return each->is_same(registered); });
}

void ParameterPlace::replace(const at::Tensor& tensor) const {
  const auto members = KnownMembers::instance().of(*module).value_or(std::vector<at::Tensor*>());
  if (member) {
    *members.at(*member) = tensor;
    return;
  }
  at::Tensor& registered = RegisteredParameters::of(*module)[name];
  for (at::Tensor* const each : members)
    if (each->is_same(registered)) *each = tensor;
  registered = tensor;
}

std::vector<TiedPlaces> parameters_of(Module& module) {
  std::unordered_set<const c10::TensorImpl*> registered;
  std::unordered_set<const Module*> seen;
  std::vector<std::pair<Module*, std::string>> modules;
  for (const auto& item : module.named_modules()) {
    if (!seen.insert(item.value().get()).second) continue;
    modules.emplace_back(item.value().get(), item.key());
    for (const auto& parameter : RegisteredParameters::of(*item.value()))
      if (parameter.value().defined()) registered.insert(parameter.value().unsafeGetTensorImpl());
  }

  std::vector<TiedPlaces> result;
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  std::vector<std::pair<const c10::TensorImpl*, ParameterPlace>> assigned;
  for (const auto& [each, path] : modules) {
    const AssignedMembers members(*each, registered);
    for (size_t i = 0; i < members.places.size(); ++i) {
      const auto& [tensor, member] = members.places[i];
      assigned.push_back({tensor, {each, path, members.unread.empty() ? "" : members.unread[i], member}});
    }
    for (const auto& parameter : RegisteredParameters::of(*each)) {
      if (!parameter.value().defined() || std::ranges::count(members.unread, parameter.key()) > 0) continue;
      const auto [at, is_new] = known.emplace(parameter.value().unsafeGetTensorImpl(), result.size());
      if (is_new) result.emplace_back();
      result[at->second].push_back({each, path, parameter.key(), {}});
    }
  }
  for (auto& [tensor, place] : assigned)
    if (const auto found = known.find(tensor); found != known.end()) result[found->second].push_back(std::move(place));
  return result;
}

void check_replaceable(const char* op, const TiedPlaces& places) {
  for (const ParameterPlace& place : places) {
    if (place.is_replaceable()) continue;
    SW_CHECK_VALUE(!has_member_from_elsewhere(*place.module),
                   "[{}] the parameter {} is registered in {}, whose member is another tensor, which is no parameter "
                   "here. Pass the module that holds both.",
                   op, place.full_name(), kind_of(*place.module));
    SW_CHECK_VALUE(false,
                   "[{}] the parameter {} is a member of {} that is not known, so its forward would keep using the old "
                   "tensor. Declare it once: static const bool known = shardwise::declare_tensors<{}>({{&{}::{}}});",
                   op, place.full_name(), kind_of(*place.module), place.module->name(), place.module->name(),
                   place.name);
  }
}

std::string kind_of(const Module& module) {
  std::string name = module.name();
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name = name.substr(colons + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace shardwise
