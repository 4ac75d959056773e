#include "wrappers/fsdp/dealt_parameters.h"

#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

struct Dealt {
  using Impl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  Impl parameter;
  std::string owner;
};

struct AllDealt {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Dealt> by_impl;

  static AllDealt& instance() {
    static auto* const all = new AllDealt;  // programs may still use it at exit
    return *all;
  }
};

}  // namespace

void note_dealt(const at::Tensor& parameter, const std::string& owner) {
  AllDealt& all = AllDealt::instance();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_impl, [](const auto& each) { return each.second.parameter.expired(); });
  all.by_impl.insert_or_assign(parameter.unsafeGetTensorImpl(), Dealt{Dealt::Impl(parameter.getIntrusivePtr()), owner});
}

void check_not_dealt(const std::string& name, const at::Tensor& parameter) {
  AllDealt& all = AllDealt::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_impl.find(parameter.unsafeGetTensorImpl());
  if (found == all.by_impl.end()) return;
  const std::string& owner = found->second.owner;
  TORCH_CHECK_VALUE(!is_dtensor(parameter),
                    fmt::format("[fully_shard] {} is in the group of {} already, a module that has it, too. Call "
                                "fully_shard on inner and shared modules first, and on those around them last.",
                                name, owner));
  TORCH_CHECK_VALUE(false, fmt::format("[fully_shard] {} is shared with {}, which was fully sharded alone. Call it on "
                                       "all modules that share it: fully_shard([a, b]).",
                                       name, owner));
}

}  // namespace shardwise
