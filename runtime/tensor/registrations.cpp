#include "runtime/tensor/registrations.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace shardwise {
namespace {

/// Never destroyed: the kernels last as long as the process.
struct Defaults {
  std::mutex mutex;
  std::map<std::pair<std::string, c10::DispatchKey>, c10::RegistrationHandleRAII> kernels;
};

Defaults& defaults() {
  static auto* const all = new Defaults;
  return *all;
}

}  // namespace

void register_default(const c10::OperatorHandle& op, c10::DispatchKey key, c10::KernelFunction kernel) {
  auto handle = c10::Dispatcher::singleton().registerImpl(op.operator_name(), key, std::move(kernel), std::nullopt,
                                                          nullptr, "shardwise");
  const std::lock_guard lock(defaults().mutex);
  defaults().kernels.emplace(std::pair(c10::toString(op.operator_name()), key), std::move(handle));
}

bool has_default(const std::string& op, c10::DispatchKey key) {
  const std::lock_guard lock(defaults().mutex);
  return defaults().kernels.contains({op, key});
}

void give_way(const std::string& op, c10::DispatchKey key) {
  const std::lock_guard lock(defaults().mutex);
  defaults().kernels.erase({op, key});
}

}  // namespace shardwise
