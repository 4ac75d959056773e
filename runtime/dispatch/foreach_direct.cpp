#include "runtime/api/gradient_layout.h"
#include "runtime/comm/events.h"
#include "runtime/dispatch/foreach_run.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"

namespace shardwise {
namespace {

/// The key of a call on lists. `is_simple()` becomes false if the call must take the general path.
class ListsKey {
 public:
  ListsKey(const OpInfo& op, c10::ArrayRef<c10::IValue> args)
      : op_(op), key_(op), is_simple_(args[0].isTensorList() && !operators_are_read()) {
    for (size_t i = 0; is_simple_ && i < args.size(); ++i) add(args[i], i);
  }

  bool is_simple() const { return is_simple_; }
  const DecisionKey& key() const { return key_; }

 private:
  void add(const c10::IValue& value, size_t arg) {
    if (value.isTensor()) {
      add_tensor(value.toTensor(), /*may_be_plain=*/!op_.args[arg].is_written);
    } else if (value.isTensorList()) {
      const auto elements = value.toListRef();
      key_.add_list(elements.size());
      for (const c10::IValue& element : elements) add_tensor(element.toTensor(), /*may_be_plain=*/arg > 0);
    } else {
      key_.add_scalar(value, op_.args[arg].is_number && !op_.rule->is_by_numbers());
    }
  }

  void add_tensor(const at::Tensor& tensor, bool may_be_plain) {
    const auto* impl = maybe_dtensor(tensor);
    if (impl)
      is_simple_ &= is_for_kernel(*impl);
    else if (tensor.defined())
      is_simple_ &= is_for_kernel(tensor) && may_be_plain;
    key_.add_tensor(tensor, impl);
  }

  const OpInfo& op_;
  DecisionKey key_;
  bool is_simple_;
};

const at::Tensor& local(const at::Tensor& tensor) {
  const auto* impl = maybe_dtensor(tensor);
  return impl ? impl->shards()[0] : tensor;
}

/// The argument for the kernel.
c10::IValue local(const c10::IValue& value) {
  if (value.isTensor()) return local(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> pieces;
  pieces.reserve(value.toListRef().size());
  for (const c10::IValue& element : value.toListRef()) pieces.push_back(local(element.toTensor()));
  return pieces;
}

/// Calls `act` with each distributed tensor that the call writes to.
template <class Act>
void for_each_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Act act) {
  for (size_t i = 0; i < args.size(); ++i)
    if (op.args[i].is_written && args[i].isTensorList())
      for (const c10::IValue& element : args[i].toListRef())
        if (auto* impl = maybe_dtensor(element.toTensor())) act(*impl, i);
}

}  // namespace

bool run_foreach_direct(const OpInfo& op, torch::jit::Stack& stack) {
  const size_t first = stack.size() - op.n_args();
  const c10::ArrayRef<c10::IValue> args(stack.data() + first, op.n_args());
  const ListsKey lists(op, args);
  const Decision* decision = lists.is_simple() ? DecisionCache::of_thread().find_direct(lists.key()) : nullptr;
  if (!decision) return false;

  std::vector<SpecPtr> outputs(decision->propagation->outputs.begin(), decision->propagation->outputs.end());
  torch::jit::Stack local_stack;
  local_stack.reserve(args.size());
  for (const c10::IValue& value : args) local_stack.push_back(local(value));
  {
    c10::SmallVector<MemoryWrite, 2> writes;
    for_each_written(op, args, [&](const DTensorImpl& impl, size_t) {
      if (impl.known_memory()) writes.push_back(impl.begin_write());
    });
    const BelowAutograd guard;
    op.handle.callBoxed(&local_stack);
  }
  const size_t scratch = scratch_arg(op, args);
  for_each_written(op, args, [&](DTensorImpl& impl, size_t arg) {
    if (arg != scratch && !impl.is_inference()) impl.bump_version();
  });
  stack.resize(first);
  if (outputs.empty()) return true;
  c10::List<at::Tensor> results;
  results.reserve(outputs.size());
  const auto pieces = local_stack[0].toListRef();
  for (size_t i = 0; i < outputs.size(); ++i) results.push_back(wrap(std::move(outputs[i]), {pieces[i].toTensor()}));
  stack.emplace_back(std::move(results));
  return true;
}

}  // namespace shardwise
