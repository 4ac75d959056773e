#include "runtime/dispatch/work_meter.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/events.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/meta_memory.h"
#include "text/check.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace shardwise {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

constexpr const char* kFusedAttention = "shardwise::fused_attention";  // and its backward

int64_t product(c10::IntArrayRef sizes) { return c10::multiply_integers(sizes); }
c10::IntArrayRef sizes(const c10::IValue& value) { return value.toTensor().sizes(); }

/// [..., m, k] x [..., k, n].
int64_t of_product(const c10::IValue& left, const c10::IValue& right) {
  return 2 * product(sizes(left)) * (right.toTensor().dim() > 1 ? sizes(right).back() : 1);
}
/// Each element of `output` [n, channels, ...] is a sum over the channels and positions of a filter; `weight` is [channels, ...].
int64_t of_convolution(const c10::IValue& output, const c10::IValue& weight) {
  const at::Tensor& filters = weight.toTensor();
  return 2 * product(sizes(output)) * (filters.numel() / std::max<int64_t>(filters.size(0), 1));
}
/// Queries [..., heads, n, e], keys [..., m, e] and values [..., m, f]; every pair counts, masked or not.
int64_t of_attention(const c10::IValue& query, const c10::IValue& key, const c10::IValue& value) {
  const at::Tensor& queries = query.toTensor();
  const int64_t pairs = queries.numel() / std::max<int64_t>(queries.size(-1), 1) * key.toTensor().size(-2);
  return 2 * pairs * (queries.size(-1) + value.toTensor().size(-1));
}
/// The two gradients of a convolution, as far as `mask` asks for them, are convolutions of its size.
int64_t of_convolution_backward(Values in) {
  const auto mask = in.back().toBoolList();
  return of_convolution(in[0], in[2]) * (int64_t{mask[0]} + int64_t{mask[1]});
}

/// Floating-point operations of the call, by its inputs and first output. A multiplication with an addition is two.
int64_t flops_of(std::string_view op, Values in, const c10::IValue& out) {
  if (op == "aten::mm" || op == "aten::bmm" || op == "aten::mv" || op == "aten::dot" || op == "aten::_scaled_mm" ||
      op == "aten::_grouped_mm" || op.starts_with("shardwise::grouped_"))
    return of_product(in[0], in[1]);
  if (op == "aten::addmm" || op == "aten::baddbmm" || op == "aten::addmv" || op == "aten::_addmm_activation")
    return of_product(in[1], in[2]);
  if (op == "aten::convolution" || op == "aten::_convolution" || op == "aten::convolution_overrideable")
    return of_convolution(in[6].toBool() ? in[0] : out, in[1]);  // transposed: each input element meets a filter
  if (op == "aten::convolution_backward") return of_convolution_backward(in);
  const bool is_attention =
      op.starts_with(kFusedAttention) || (op.find("dot_product") != op.npos && op.find("attention") != op.npos);
  if (is_attention &&
      op.ends_with(
          "_backward"))  // two products again, and four for the gradients: 2.5 times the forward with flash kernels
    return of_attention(in[1], in[2], in[3]) * 5 / 2;
  if (is_attention) return of_attention(in[0], in[1], in[2]);
  return 0;
}

}  // namespace

struct WorkMeter::Recording {
  /// Properties of all calls of an operator.
  struct OpFacts {
    std::shared_ptr<const std::string> name;
    bool is_composed = false;     // of other operators, which count
    bool is_view = false;         // its result is its operand's memory
    std::vector<size_t> written;  // operands that it writes, if it returns nothing: lists in place
  };

  EventReader reader{EventReader::kOperators};  // has the general path call every operator on pieces by the dispatcher
  using Key = std::tuple<const std::string*, int64_t, int64_t, bool>;  // the members of a work with one call
  std::vector<Work> works;
  std::map<Key, size_t> open;  // numbers of works, to which equal calls are added
  std::unordered_map<c10::OperatorName, OpFacts> known;
  int distributed = 0;     // open calls on distributed tensors
  bool is_inside = false;  // in an operator that counts
  at::CallbackHandle handle = 0;

  static Recording*& of_thread() {
    static thread_local Recording* open = nullptr;
    return open;
  }

  void add(const Work& call) {
    const auto [at, is_new] =
        open.try_emplace({call.op.get(), call.flops, call.bytes, call.is_on_pieces}, works.size());
    if (is_new) {
      works.push_back(call);
      return;
    }
    Work& equal = works[at->second];
    equal.flops += call.flops;
    equal.bytes += call.bytes;
    ++equal.n_calls;
  }

  const OpFacts& facts_of(const c10::OperatorName& name) {
    const auto [at, is_new] = known.try_emplace(name);
    if (!is_new) return at->second;
    OpFacts& facts = at->second;
    facts.name = std::make_shared<const std::string>(name.name);
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    const bool is_product = name.name.starts_with("shardwise::grouped_") || name.name.starts_with(kFusedAttention);
    facts.is_composed = !op || (name.name.starts_with("shardwise::") && !is_product) ||
                        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    facts.is_view = name.name == "aten::_unsafe_view" || name.name == "aten::set_" ||
                    (op && std::ranges::any_of(op->schema().returns(), [](const c10::Argument& result) {
                       return result.alias_info() && !result.alias_info()->isWrite();
                     }));
    if (op && op->schema().returns().empty()) {
      const auto& arguments = op->schema().arguments();
      for (size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) facts.written.push_back(i);
    }
    return facts;
  }
};

namespace {

/// An open call.
struct Call : at::ObserverContext {
  enum Kind { kDistributed, kCounts };
  explicit Call(Kind kind) : kind(kind) {}
  Kind kind;
  Work work;
  const WorkMeter::Recording::OpFacts* facts = nullptr;
  std::vector<c10::IValue> inputs;
  std::optional<KernelMemory> memory;
};

using Recording = WorkMeter::Recording;

void add_bytes(Work& work, const c10::IValue& value, std::unordered_set<const void*>* seen) {
  for_each_tensor(value, [&](const at::Tensor& tensor, size_t, size_t) {
    if (tensor.defined() && tensor.layout() == at::kStrided &&
        (!seen || seen->insert(tensor.unsafeGetTensorImpl()).second))
      work.bytes += static_cast<int64_t>(tensor.nbytes());
  });
}

std::unique_ptr<at::ObserverContext> entered(const at::RecordFunction& function) {
  Recording* const meter = Recording::of_thread();
  if (!meter || meter->is_inside || ShapesAlone::is_open()) return nullptr;
  const auto name = function.operator_name();
  if (!name) return nullptr;
  bool is_distributed = false, is_on_meta = false;
  for_each_tensor(function.inputs(), [&](const at::Tensor& tensor, size_t, size_t) {
    is_distributed |= is_dtensor(tensor);
    is_on_meta |= tensor.defined() && tensor.is_meta();
  });
  if (is_distributed) {
    ++meter->distributed;
    return std::make_unique<Call>(Call::kDistributed);
  }
  const Recording::OpFacts& facts = meter->facts_of(*name);
  if (!is_on_meta || facts.is_composed || facts.is_view) return nullptr;
  auto call = std::make_unique<Call>(Call::kCounts);
  call->facts = &facts;
  call->inputs.assign(function.inputs().begin(), function.inputs().end());
  call->work = {facts.name, 0, 0, meter->distributed > 0 || *CommScope::current_op() != '\0'};
  std::unordered_set<const void*> seen;
  for (const c10::IValue& input : call->inputs) add_bytes(call->work, input, &seen);
  meter->is_inside = true;
  call->memory.emplace();
  return call;
}

void left(const at::RecordFunction& function, at::ObserverContext* context) {
  Recording* const meter = Recording::of_thread();
  if (!meter || !context) return;
  auto& call = *static_cast<Call*>(context);
  if (call.kind == Call::kDistributed) {
    --meter->distributed;
    return;
  }
  meter->is_inside = false;
  const auto& outputs = function.outputs();
  for (const c10::IValue& output : outputs) add_bytes(call.work, output, nullptr);
  for (const size_t i : call.facts->written) add_bytes(call.work, call.inputs[i], nullptr);
  if (!outputs.empty()) call.work.flops = flops_of(*call.work.op, call.inputs, outputs[0]);
  meter->add(call.work);
}

}  // namespace

WorkMeter::WorkMeter() : recording_(std::make_shared<Recording>()) {
  SW_CHECK_VALUE(!Recording::of_thread(),
                 "[dry_run] the work of this thread is being counted already. End the other dry run first.");
  Recording::of_thread() = recording_.get();
  recording_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&entered, &left)
                                                      .needsInputs(true)
                                                      .needsOutputs(true)
                                                      .scopes({at::RecordScope::FUNCTION}));
}

void WorkMeter::stop() {
  if (Recording::of_thread() != recording_.get()) return;
  at::removeCallback(recording_->handle);
  recording_->reader.stop();
  Recording::of_thread() = nullptr;
}

int64_t WorkMeter::n_works() {
  recording_->open.clear();
  return static_cast<int64_t>(recording_->works.size());
}

const std::vector<Work>& WorkMeter::works() const { return recording_->works; }

}  // namespace shardwise
