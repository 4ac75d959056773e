#include "runtime/api/forward_scope.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shardwise {
namespace {

/// The outermost call of a distributed module.
struct Forward {
  int64_t module = 0;
  std::shared_ptr<ComparedCalls> calls;
  ComparedCalls::Differences differences;
  std::function<bool()> is_running;
  bool covers_other_meshes = true;
  int64_t n_calls = 1;  // nested calls of that module
};

std::optional<Forward>& current() {
  static thread_local std::optional<Forward> forward;
  return forward;
}

/// Null if this thread is in no forward, or if the call that opened it has ended.
Forward* running() {
  std::optional<Forward>& forward = current();
  if (forward && forward->is_running && !forward->is_running()) forward.reset();
  return forward ? &*forward : nullptr;
}

}  // namespace

bool ForwardScope::join(int64_t module) {
  Forward* const forward = running();
  if (forward && forward->module == module) ++forward->n_calls;
  return forward != nullptr;
}

void ForwardScope::open(int64_t module, const std::string& name, std::shared_ptr<ComparedCalls> calls,
                        const std::vector<ForwardArgument>& arguments, std::function<bool()> is_running,
                        bool covers_other_meshes) {
  auto differences = calls->differences(name, arguments);
  current() = Forward{module, std::move(calls), std::move(differences), std::move(is_running), covers_other_meshes};
}

void ForwardScope::leave(int64_t module) {
  std::optional<Forward>& forward = current();
  if (forward && forward->module == module && --forward->n_calls == 0) forward.reset();
}

bool ForwardScope::is_open() { return running() != nullptr; }

std::string ForwardScope::difference(const DeviceMesh& mesh) {
  Forward& forward = *current();
  for (const auto& [compared, text] : forward.differences)
    if (has_all_ranks_of(*compared, mesh)) {
      forward.calls->forget_last();
      return text;
    }
  const auto is_covered = [&](const MeshPtr& compared) { return has_all_ranks_of(*compared, mesh); };
  if (!forward.covers_other_meshes && std::ranges::none_of(forward.calls->meshes(), is_covered))
    return "the ranks of its mesh did not compare their arguments. If fully_shard() took the parameter, call its "
           "module by forward(module, x).";
  return "";
}

}  // namespace shardwise
