#include "wrappers/fsdp/taken_parameters.h"

#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

struct Taken {
  using Impl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  Impl parameter;
  std::string owner;
};

struct TakenParameters {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Taken> by_impl;

  static TakenParameters& instance() {
    static auto* const all = new TakenParameters;  // programs may still use it at exit
    return *all;
  }
};

}  // namespace

void note_taken(const at::Tensor& parameter, const std::string& owner) {
  TakenParameters& all = TakenParameters::instance();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_impl, [](const auto& each) { return each.second.parameter.expired(); });
  all.by_impl.insert_or_assign(parameter.unsafeGetTensorImpl(), Taken{Taken::Impl(parameter.getIntrusivePtr()), owner});
}

void check_not_taken(const std::string& name, const at::Tensor& parameter) {
  TakenParameters& all = TakenParameters::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_impl.find(parameter.unsafeGetTensorImpl());
  if (found == all.by_impl.end()) return;
  const std::string& owner = found->second.owner;
  SW_CHECK_VALUE(!is_dtensor(parameter),
                 "[fully_shard] {} is already in the group of {}, a module that also has it. Call fully_shard on inner "
                 "and shared modules first, and on the modules around them last.",
                 name, owner);
  SW_CHECK_VALUE(false,
                 "[fully_shard] {} is shared with {}, which was fully sharded separately. Call it on all modules that "
                 "share it: fully_shard([a, b]).",
                 name, owner);
}

}  // namespace shardwise
