#include "runtime/api/forward_scope.h"

#include "runtime/api/equal_values.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <optional>

namespace shardwise {
namespace {

using Arguments = std::vector<ForwardArgument>;

void add_form(Digest& digest, const ForwardArgument& argument) {
  digest.add(argument.path);
  digest.add(argument.type);
  if (argument.tensor.defined()) shardwise::add_form(digest, argument.tensor);
}

bool is_on_meta(const ForwardArgument& argument) { return argument.tensor.defined() && argument.tensor.is_meta(); }

int64_t signature_of(const Arguments& arguments) {
  Digest digest;
  for (const ForwardArgument& argument : arguments) {
    add_form(digest, argument);
    digest.add(static_cast<int64_t>(is_on_meta(argument)));  // a call with meta tensors is compared apart
  }
  return digest.value();
}

int64_t digest_of(const ForwardArgument& argument) {
  Digest digest;
  add_form(digest, argument);
  digest.add(argument.text);
  if (argument.tensor.defined()) add_values(digest, argument.tensor);
  return digest.value();
}

/// The group that compares the call. One rank may call with meta tensors alone, so nothing is sent then. A module that was distributed on
/// meta may have values by now.
const Group& comparing_group(const Arguments& arguments, const DeviceMesh& mesh) {
  const auto is_tensor = [](const ForwardArgument& argument) { return argument.tensor.defined(); };
  const bool is_planned =
      std::ranges::any_of(arguments, is_on_meta) || (mesh.is_meta() && std::ranges::none_of(arguments, is_tensor));
  return *(is_planned ? mesh.on_meta() : mesh.with_memory())->group();
}

/// "" if all ranks of the group have the same arguments. Collective.
std::string difference(const std::string& name, const Arguments& arguments, const Group& group) {
  const BelowAutograd guard;
  const OutsideTracers values;
  const OutsideTransforms plain;
  const CommScope scope("forward", CommScope::Cause::kProgram);
  std::vector<int64_t> digests;
  Digest all;
  for (const ForwardArgument& argument : arguments) all.add(digests.emplace_back(digest_of(argument)));
  const auto n_arguments = static_cast<int64_t>(arguments.size());
  const auto totals = gather_alike(group, "compare arguments", {all.value(), n_arguments});
  const auto differs = [](const auto& rows, auto number) {
    return std::ranges::find_if(rows, [&](const auto& row) { return number(row) != number(rows[0]); }) - rows.begin();
  };
  const auto n_ranks = static_cast<int64_t>(totals.size());
  int64_t other = differs(totals, std::identity());
  if (other == n_ranks) return "";
  std::string what = "arguments";
  if (differs(totals, [](const auto& row) { return row[1]; }) == n_ranks) {
    const auto each = gather_alike(group, "compare arguments", digests);
    for (int64_t k = 0, at = n_ranks; k < n_arguments && at == n_ranks; ++k)
      if (at = differs(each, [&](const auto& row) { return row[k]; }); at < n_ranks) {
        other = at;
        what = arguments[k].path;
      }
  }
  return fmt::format(
      "ranks {} and {} called {} with different {}. Give all ranks the same, or wrap each rank's part of a batch "
      "before the call: DTensor.from_local(x, mesh, [Shard(0)]).",
      group.ranks[0], group.ranks[other], name, what);
}

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

ComparedCalls::ComparedCalls(std::vector<MeshPtr> meshes) : meshes_(std::move(meshes)) {}

ComparedCalls::Differences ComparedCalls::differences(const std::string& name, const Arguments& arguments) {
  // A backward that recomputes a forward uses arguments that were compared in that forward.
  if (is_tracing() || torch::autograd::get_current_graph_task_id() >= 0) return {};
  const int64_t signature = signature_of(arguments);
  {
    const std::lock_guard lock(mutex_);
    last_ = signature;
    if (const Differences* known = known_.find(signature); known && !checks_order()) return *known;
  }
  Differences result;
  for (const MeshPtr& mesh : meshes_) {
    if (arguments.empty() || !mesh->is_member() || mesh->size() == 1) continue;
    if (std::string text = difference(name, arguments, comparing_group(arguments, *mesh)); !text.empty())
      result.emplace_back(mesh, std::move(text));
  }
  const std::lock_guard lock(mutex_);
  known_.insert(signature, result);
  return result;
}

void ComparedCalls::forget_last() {
  const std::lock_guard lock(mutex_);
  known_.erase(last_);
}

std::vector<MeshPtr> meshes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<MeshPtr> meshes;
  for (const at::Tensor& tensor : tensors)
    if (const auto* impl = maybe_dtensor(tensor); impl && !std::ranges::count(meshes, impl->spec()->mesh()))
      meshes.push_back(impl->spec()->mesh());
  return meshes;
}

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
