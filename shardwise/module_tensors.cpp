#include "shardwise/module_tensors.h"

#include "wrappers/parallel_modules.h"

#include <fmt/format.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace shardwise {
namespace {

using torch::nn::Module;

/// Names what torch::nn::Module keeps for classes derived from it.
struct RegisteredParameters : Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(Module& module) {
    return module.*(&RegisteredParameters::parameters_);
  }
};

/// An RNN's forward reads a list.
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
    static auto* const known = new KnownMembers;  // programs may ask while they end
    return *known;
  }

  void add(MembersOf members_of) {
    const std::lock_guard lock(mutex_);
    known_.push_back(std::move(members_of));
  }

  /// Of every class that `module` is; nothing where none is known.
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

}  // namespace

bool declare_members(MembersOf members_of) {
  KnownMembers::instance().add(std::move(members_of));
  return true;
}

const at::Tensor& ParameterPlace::tensor() const { return RegisteredParameters::of(*module)[name]; }

bool ParameterPlace::is_replaceable() const {
  const auto members = KnownMembers::instance().of(*module);
  if (!members) return false;
  const at::Tensor& registered = tensor();
  return members->empty() ||
         std::ranges::any_of(*members, [&](const at::Tensor* member) { return member->is_same(registered); });
}

void ParameterPlace::replace(const at::Tensor& tensor) const {
  at::Tensor& registered = RegisteredParameters::of(*module)[name];
  for (at::Tensor* const member : KnownMembers::instance().of(*module).value_or(std::vector<at::Tensor*>()))
    if (member->is_same(registered)) *member = tensor;
  registered = tensor;
}

std::vector<TiedPlaces> parameters_of(Module& module) {
  std::vector<TiedPlaces> result;
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  std::unordered_set<const Module*> seen;
  for (const auto& item : module.named_modules()) {
    Module& each = *item.value();
    if (!seen.insert(&each).second) continue;
    for (const auto& parameter : RegisteredParameters::of(each)) {
      if (!parameter.value().defined()) continue;
      const auto [at, is_new] = known.emplace(parameter.value().unsafeGetTensorImpl(), result.size());
      if (is_new) result.emplace_back();
      result[at->second].push_back({&each, item.key(), parameter.key()});
    }
  }
  return result;
}

void check_replaceable(const char* op, const TiedPlaces& places) {
  for (const ParameterPlace& place : places)
    TORCH_CHECK_VALUE(place.is_replaceable(),
                      fmt::format("[{}] the parameter {} is a member of {} that is not known, so its forward would go "
                                  "on with the old one. Declare it once: static const bool known = "
                                  "shardwise::declare_tensors<{}>({{&{}::{}}});",
                                  op, place.full_name(), kind_of(*place.module), place.module->name(),
                                  place.module->name(), place.name));
}

std::string kind_of(const Module& module) {
  std::string name = module.name();
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name = name.substr(colons + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace shardwise
