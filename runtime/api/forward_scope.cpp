#include "runtime/api/forward_scope.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_set>
#include <utility>

namespace shardwise {
namespace {

constexpr const char* kWrap = ForwardScope::kWrap;

/// One argument as ranks compare it.
struct Summary {
  int64_t digest = 0;
  bool is_readable = true;
};

/// False for values that this process does not have in memory: meta and fake tensors, wrapped ones, those of other layouts.
bool is_readable(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

Summary summary_of(const ForwardArgument& argument) {
  Digest digest;
  digest.add(argument.path);
  digest.add(argument.text);
  if (!argument.tensor.defined()) return {digest.value()};
  digest.add(static_cast<int64_t>(argument.tensor.scalar_type()));
  for (const int64_t size : argument.tensor.sizes()) digest.add(size);
  const bool readable = is_readable(argument.tensor);
  digest.add(static_cast<int64_t>(readable));
  if (!readable) return {digest.value(), false};
  const at::Tensor values = argument.tensor.resolve_conj().resolve_neg().cpu().contiguous();
  digest.add(values.const_data_ptr(), values.nbytes());
  return {digest.value()};
}

at::Tensor gather_numbers(const Group& group, const std::vector<int64_t>& own) {
  return gather_rows(group, "compare arguments",
                     at::tensor(own, at::TensorOptions(at::kLong)).to(numbers_device(group)));
}

/// The first two ranks whose rows differ.
std::optional<std::pair<int64_t, int64_t>> differing_ranks(const Group& group, const at::Tensor& rows) {
  const auto numbers = rows.accessor<int64_t, 2>();
  for (int64_t i = 1; i < rows.size(0); ++i)
    for (int64_t k = 0; k < rows.size(1); ++k)
      if (numbers[i][k] != numbers[0][k]) return std::pair(group.ranks[0], group.ranks[i]);
  return std::nullopt;
}

/// The outermost call of a distributed module.
class Forward {
 public:
  Forward(int64_t module, std::string name, std::vector<ForwardArgument> arguments, std::function<bool()> is_running)
      : module(module), name_(std::move(name)), arguments_(std::move(arguments)), is_running_(std::move(is_running)) {}

  bool is_running() const { return !is_running_ || is_running_(); }

  /// Why not all ranks of `mesh` were given the same, or "". Collective at first.
  const std::string& difference(const MeshPtr& mesh) {
    const auto known = std::ranges::find(compared_, mesh, &Compared::first);
    return known != compared_.end() ? known->second : compared_.emplace_back(mesh, compare(mesh)).second;
  }
  /// Why tensors that the forward took out need not be equal on all ranks of `mesh`, or "".
  std::string given_out(const MeshPtr& mesh) const {
    if (!given_out_.empty()) return given_out_;
    for (const MeshPtr& replica : replicas_)
      if (!has_all_ranks_of(*replica, *mesh))
        return fmt::format(
            "within {} the value of a tensor on the ranks {} was taken before, which other ranks need not have. {}",
            name_, fmt::join(replica->grid().ranks, ", "), ForwardScope::kWrap);
    return "";
  }
  /// The value that all ranks of `mesh` have was taken.
  void give_replica(const MeshPtr& mesh) {
    if (std::ranges::find(replicas_, mesh) == replicas_.end()) replicas_.push_back(mesh);
  }
  void give_out(const std::string& what) {
    if (given_out_.empty())
      given_out_ = fmt::format("within {} {} before: plain tensors need not be equal any more. {}", name_, what, kWrap);
  }

  const int64_t module;
  int64_t n_calls = 1;  // of that module, one within the other

 private:
  using Compared = std::pair<MeshPtr, std::string>;

  const std::vector<Summary>& summaries() {
    if (summaries_.empty())
      for (const ForwardArgument& argument : arguments_) summaries_.push_back(summary_of(argument));
    return summaries_;
  }

  std::string compare(const MeshPtr& mesh) {
    if (arguments_.empty() || !mesh->is_member() || mesh->size() == 1) return "";
    const BelowAutograd guard;
    const Group& group = *mesh->group();
    const CommScope scope("forward", CommScope::Cause::kProgram);
    Digest all;
    for (const Summary& summary : summaries()) all.add(summary.digest);
    const at::Tensor rows = [&] {
      try {
        return gather_numbers(group, {all.value(), static_cast<int64_t>(arguments_.size())});
      } catch (c10::Error& error) {
        error.add_context(waited());
        throw;
      } catch (const std::runtime_error& error) {  // of gloo
        throw std::runtime_error(fmt::format("{} ({})", error.what(), waited()));
      }
    }();
    const auto differing = differing_ranks(group, rows);
    if (!differing) return unreadable();
    const at::Tensor counts = rows.select(1, 1);
    return counts.eq(counts[0]).all().item<bool>() ? which_differs(group) : what_differs(*differing, "arguments");
  }

  /// What may be wrong where the others do not answer.
  std::string waited() const {
    return fmt::format(
        "while the ranks compared the plain arguments of {}: a rank that was called without any compares "
        "nothing. Give all ranks the same arguments.",
        name_);
  }

  /// All ranks have the same kinds of arguments.
  std::string unreadable() const {
    const auto found = std::ranges::find(summaries_, false, &Summary::is_readable);
    if (found == summaries_.end()) return "";
    return fmt::format("{} was called with {}, whose values cannot be compared between ranks. {}", name_,
                       arguments_[found - summaries_.begin()].path, kWrap);
  }

  std::string which_differs(const Group& group) const {
    std::vector<int64_t> own;
    for (const Summary& summary : summaries_) own.push_back(summary.digest);
    const at::Tensor rows = gather_numbers(group, own);
    for (int64_t k = 0; k < rows.size(1); ++k)
      if (const auto differing = differing_ranks(group, rows.narrow(1, k, 1)))
        return what_differs(*differing, arguments_[k].path);
    TORCH_INTERNAL_ASSERT(false, "[forward] digests of arguments differ together and not one by one");
  }

  std::string what_differs(std::pair<int64_t, int64_t> ranks, const std::string& what) const {
    return fmt::format(
        "ranks {} and {} called {} with different {}. Give all ranks the same, or wrap each rank's part of a "
        "batch before the call: DTensor.from_local(x, mesh, [Shard(0)]).",
        ranks.first, ranks.second, name_, what);
  }

  std::string name_;
  std::vector<ForwardArgument> arguments_;
  std::function<bool()> is_running_;
  std::vector<Summary> summaries_;
  std::vector<Compared> compared_;
  std::string given_out_;
  std::vector<MeshPtr> replicas_;  // whose values were taken
};

std::unique_ptr<Forward>& current() {
  static thread_local std::unique_ptr<Forward> forward;
  return forward;
}

/// Null where this thread is in no forward, or the call of the one that was opened has ended.
Forward* running() {
  std::unique_ptr<Forward>& forward = current();
  if (forward && !forward->is_running()) forward.reset();
  return forward.get();
}

std::string part_of(const Spec& spec, const char* what) {
  return fmt::format("a rank's part of {} placed as {} was taken", what,
                     to_string(c10::ArrayRef<Placement>(spec.placements())));
}

/// Modules in whose forward a graph takes out a rank's part: nobody will say so when the graph runs, so each forward is taken to do it.
struct GraphsThatGiveOut {
  std::mutex mutex;
  std::unordered_set<int64_t> modules;
  std::atomic<bool> any = false;
};

GraphsThatGiveOut& graphs_that_give_out() {
  static auto* graphs = new GraphsThatGiveOut;
  return *graphs;
}

void note_graph_gives_out(int64_t module) {
  GraphsThatGiveOut& graphs = graphs_that_give_out();
  const std::lock_guard lock(graphs.mutex);
  graphs.modules.insert(module);
  graphs.any = true;
}

bool gives_out_in_graph(int64_t module) {
  GraphsThatGiveOut& graphs = graphs_that_give_out();
  if (!graphs.any) return false;
  const std::lock_guard lock(graphs.mutex);
  return graphs.modules.contains(module);
}

}  // namespace

bool ForwardScope::join(int64_t module) {
  Forward* const forward = running();
  if (forward && forward->module == module) ++forward->n_calls;
  return forward != nullptr;
}

void ForwardScope::open(int64_t module, std::string name, std::vector<ForwardArgument> arguments,
                        std::function<bool()> is_running) {
  current() = std::make_unique<Forward>(module, std::move(name), std::move(arguments), std::move(is_running));
  if (gives_out_in_graph(module)) current()->give_out("a compiled part of the forward");
}

void ForwardScope::leave(int64_t module) {
  std::unique_ptr<Forward>& forward = current();
  if (forward && forward->module == module && --forward->n_calls == 0) forward.reset();
}

void ForwardScope::forget(int64_t module) {
  GraphsThatGiveOut& graphs = graphs_that_give_out();
  if (!graphs.any) return;
  const std::lock_guard lock(graphs.mutex);
  graphs.modules.erase(module);
}

bool ForwardScope::is_open() { return running() != nullptr; }

std::string ForwardScope::objection(const MeshPtr& mesh) {
  check_not_traced("a plain tensor next to DTensors");
  Forward& forward = *current();
  std::string given_out = forward.given_out(mesh);
  return given_out.empty() ? forward.difference(mesh) : std::move(given_out);
}

std::string ForwardScope::difference(const MeshPtr& mesh) { return current()->difference(mesh); }

void ForwardScope::give_out(const Spec& spec) {
  if (!current() || torch::autograd::get_current_graph_task_id() >= 0) return;
  Forward* const forward = running();
  if (!forward) return;
  const bool all_have_it =
      spec.layout().is_replicated() && std::ssize(spec.mesh()->grid().ranks) == spec.mesh()->world()->size();
  if (is_tracing() && !all_have_it) note_graph_gives_out(forward->module);
  if (spec.layout().is_replicated()) return forward->give_replica(spec.mesh());
  forward->give_out(part_of(spec, "a tensor"));
}

void ForwardScope::give_out_gradient(const Spec& spec) {
  Forward* const forward = running();
  if (forward && !spec.layout().is_replicated()) forward->give_out(part_of(spec, "a gradient"));
}

void ForwardScope::give_out(const char* by) {
  if (Forward* const forward = running()) forward->give_out(fmt::format("{} gave a plain tensor", by));
}

OutsideForward::OutsideForward() : outer_(current().release()) {}
OutsideForward::~OutsideForward() { current().reset(static_cast<Forward*>(outer_)); }

}  // namespace shardwise
