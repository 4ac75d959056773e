#include "wrappers/local_shards_dispatch.h"

#include "runtime/rules/op_info.h"
#include "runtime/rules/propagate.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"
#include "runtime/tensor/spec.h"
#include "text/check.h"
#include "wrappers/local_shards_impl.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace shardwise {
namespace {

std::string list(c10::ArrayRef<Dims> offsets) {
  std::vector<std::string> words;
  for (const Dims& each : offsets) words.push_back(fmt::format("[{}]", fmt::join(each, ", ")));
  return fmt::format("[{}]", fmt::join(words, ", "));
}

void check_same_offsets(const OpInfo& op, const LocalShardsImpl& a, const LocalShardsImpl& b) {
  SW_CHECK_VALUE(a.offsets() == b.offsets(),
                 "[{}] the wrappers' pieces have different offsets: {} and {}. Give both the same offsets, or convert "
                 "them with DTensor.from_local and redistribute one.",
                 op.name, list(a.offsets()), list(b.offsets()));
}

/// Calls `op` once per piece, with each wrapper on the stack replaced by its piece and "size" and "stride" arguments (of the wrapper itself) by the
/// piece's. New results become wrappers with the same offsets. Without pieces the operator runs once on an empty piece, for the results' dtypes.
/// Throws: c10::ValueError if wrappers have different offsets, or "size" is not the wrapper's.
class PieceRun {
 public:
  PieceRun(const OpInfo& op, torch::jit::Stack& stack) : op_(op), stack_(stack), first_(stack.size() - op.n_args()) {
    for (size_t i = 0; i < op.n_args(); ++i) {
      if (!arg(i).isTensor()) continue;
      const auto* wrapper = maybe_local_shards(arg(i).toTensor());
      if (!wrapper) continue;
      if (!wrappers_.empty()) check_same_offsets(op, *wrappers_[0].second, *wrapper);
      wrappers_.emplace_back(i, wrapper);
    }
    check_sizes();
  }

  void run() {
    const size_t n_pieces = leader().shards().size();
    outputs_.resize(op_.n_returns());
    for (size_t piece = 0; piece < std::max<size_t>(n_pieces, 1); ++piece) run_piece(piece);
    std::vector<c10::IValue> results;
    for (size_t i = 0; i < op_.n_returns(); ++i) results.push_back(result(i, n_pieces > 0));
    stack_.resize(first_);
    for (c10::IValue& value : results) stack_.push_back(std::move(value));
  }

 private:
  c10::IValue& arg(size_t i) { return stack_[first_ + i]; }
  const LocalShardsImpl& leader() const { return *wrappers_[0].second; }

  void check_sizes() {
    const auto position = op_.handle.schema().argumentIndexWithName("size");
    if (!position || !arg(*position).isIntList()) return;
    sizes_arg_ = position;
    const auto wanted = arg(*position).toIntVector();
    SW_CHECK_VALUE(wanted == leader().sizes(),
                   "[{}] size [{}] is not the wrapper's [{}]: only the offsets of its own pieces are known. Work on "
                   "local_shards(), or convert the wrapper with DTensor.from_local.",
                   op_.name, fmt::join(wanted, ", "), fmt::join(leader().sizes(), ", "));
  }

  void run_piece(size_t piece) {
    torch::jit::Stack stack(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    const auto stride = op_.handle.schema().argumentIndexWithName("stride");
    for (const auto& [i, wrapper] : wrappers_) {
      const auto options = at::TensorOptions().dtype(wrapper->dtype()).device(wrapper->device());
      stack[i] = wrapper->shards().empty() ? at::empty(wrapper->sizes(), options) : wrapper->shards()[piece];
    }
    if (sizes_arg_) {
      const auto sizes = stack[wrappers_[0].first].toTensor().sizes().vec();
      if (stride) {
        const Dims strides = dense_strides(sizes, stack[*stride].toIntVector());
        stack[*stride] = std::vector<int64_t>(strides.begin(), strides.end());
      }
      stack[*sizes_arg_] = sizes;
    }
    op_.handle.callBoxed(&stack);
    for (size_t i = 0; i < op_.n_returns(); ++i)
      if (op_.returned_arg[i] < 0) outputs_[i].push_back(stack[i].toTensor());
  }

  c10::IValue result(size_t i, bool has_pieces) {
    if (op_.returned_arg[i] >= 0) return arg(op_.returned_arg[i]);
    const auto options = outputs_[i][0].options();
    if (!has_pieces) outputs_[i].clear();
    return wrap_local_shards(std::move(outputs_[i]), leader().offsets(), options, leader().dim());
  }

  const OpInfo& op_;
  torch::jit::Stack& stack_;
  size_t first_;
  std::optional<int> sizes_arg_;
  c10::SmallVector<std::pair<size_t, const LocalShardsImpl*>, 4> wrappers_;  // by position
  std::vector<std::vector<at::Tensor>> outputs_;
};

/// Calls `op`, which works on lists element by element, once with all pieces of all elements. Elements may be plain tensors, at the same positions in
/// every list; 0-dim tensors apply to every piece.
class PieceListRun {
 public:
  PieceListRun(const OpInfo& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), first_(stack.size() - op.n_args()) {
    for (const c10::IValue& value : c10::ArrayRef(stack).slice(first_))
      if (value.isTensorList() && elements_.empty()) elements_ = value.toTensorVector();
    for (const at::Tensor& element : elements_) {
      const auto* wrapper = maybe_local_shards(element);
      n_pieces_.push_back(wrapper ? wrapper->shards().size() : 1);
      n_all_ += n_pieces_.back();
    }
  }

  void run() {
    torch::jit::Stack stack;
    for (const c10::IValue& value : c10::ArrayRef(stack_).slice(first_)) stack.push_back(flattened(value));
    if (n_all_ > 0) op_.handle.callBoxed(&stack);
    stack_.resize(first_);
    if (op_.n_returns() > 0)
      stack_.push_back(regrouped(n_all_ > 0 ? stack[0].toTensorVector() : std::vector<at::Tensor>()));
  }

 private:
  c10::IValue flattened(const c10::IValue& value) const {
    if (!value.isList() || value.toListRef().size() != elements_.size()) return value;
    if (value.isTensorList()) return flattened_tensors(value.toTensorVector());
    c10::impl::GenericList scalars(value.toList().elementType());
    for (size_t j = 0; j < elements_.size(); ++j)
      for (size_t piece = 0; piece < n_pieces_[j]; ++piece) scalars.push_back(value.toListRef()[j]);
    return scalars;
  }

  c10::IValue flattened_tensors(const std::vector<at::Tensor>& tensors) const {
    c10::List<at::Tensor> pieces;
    for (size_t j = 0; j < tensors.size(); ++j) {
      const auto *leader = maybe_local_shards(elements_[j]), *wrapper = maybe_local_shards(tensors[j]);
      SW_CHECK_VALUE(!wrapper == !leader || (!wrapper && tensors[j].dim() == 0),
                     "[{}] element {} is a LocalShardsWrapper in one list and a plain tensor with dims in another. "
                     "Give wrappers of the same offsets, or 0-dim tensors.",
                     op_.name, j);
      if (wrapper) check_same_offsets(op_, *leader, *wrapper);
      for (size_t piece = 0; piece < n_pieces_[j]; ++piece)
        pieces.push_back(wrapper ? wrapper->shards()[piece] : tensors[j]);
    }
    return pieces;
  }

  c10::IValue regrouped(const std::vector<at::Tensor>& pieces) const {
    c10::List<at::Tensor> results;
    auto next = pieces.begin();
    for (size_t j = 0; j < elements_.size(); ++j) {
      const auto end = next + static_cast<std::ptrdiff_t>(n_pieces_[j]);
      const auto* wrapper = maybe_local_shards(elements_[j]);
      results.push_back(
          wrapper ? wrap_local_shards({next, end}, wrapper->offsets(), elements_[j].options(), wrapper->dim()) : *next);
      next = end;
    }
    return results;
  }

  const OpInfo& op_;
  torch::jit::Stack& stack_;
  size_t first_;
  std::vector<at::Tensor> elements_;  // of the first list; all other lists have the same structure
  std::vector<size_t> n_pieces_;
  size_t n_all_ = 0;
};

/// How an operator runs on pieces.
enum class Manner : uint8_t { kUnknown, kPieces, kLists, kRefused };

/// Views with a size argument. With the wrapper's own sizes they keep the pieces' offsets.
constexpr std::array<std::string_view, 4> kViewsOfSize = {"aten::view", "aten::_unsafe_view", "aten::expand",
                                                          "aten::_reshape_alias"};

template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> args, const Visit& visit) {
  for (const c10::IValue& value : args) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor(), false);
    if (!value.isTensorList() && !value.isOptionalTensorList()) continue;
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor(), true);
  }
}

/// Asks the rule about a call with these arguments, each tensor replaced by one of one element.
bool may_run_by_box(const OpInfo& op, const Rule& rule, c10::ArrayRef<c10::IValue> args) {
  std::vector<c10::IValue> samples = args.vec();
  OpCall call{op, {}, {}, {}};
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].isTensor() || !samples[i].toTensor().defined()) continue;
    const at::Tensor tensor = samples[i].toTensor();
    samples[i] = at::ones(std::vector<int64_t>(tensor.dim(), 1), tensor.options());
    call.operands.push_back({nullptr, samples[i].toTensor().sizes(), i, 0, op.args[i].is_written});
  }
  call.args = samples;
  return infer_outputs(call) && rule.signature(call).is_pointwise;
}

Manner manner_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (std::ranges::count(kViewsOfSize, op.name)) return Manner::kPieces;
  const Rule* rule = RuleTable::global().find(op.name);
  if (!rule || rule->place() || rule->is_gathered()) return Manner::kRefused;
  if (rule->is_per_element()) return Manner::kLists;
  if (std::ranges::any_of(args, [](const c10::IValue& value) { return value.isTensorList(); })) return Manner::kRefused;
  return rule->is_shape_only() || may_run_by_box(op, *rule, args) ? Manner::kPieces : Manner::kRefused;
}

bool equal(const at::Tensor& a, const at::Tensor& b) {
  const auto *x = maybe_local_shards(a), *y = maybe_local_shards(b);
  TORCH_CHECK_TYPE(x && y,
                   "[aten::equal] compares a LocalShardsWrapper with another tensor. Compare local_shards() with it.");
  if (x->offsets() != y->offsets()) return false;
  BelowAutograd guard;
  for (size_t i = 0; i < x->shards().size(); ++i)
    if (!at::equal(x->shards()[i], y->shards()[i])) return false;
  return true;
}

bool is_pinned(const at::Tensor& wrapper, std::optional<c10::Device> /*device*/) {
  const auto& shards = maybe_local_shards(wrapper)->shards();
  return !shards.empty() && std::ranges::all_of(shards, [](const at::Tensor& shard) { return shard.is_pinned(); });
}

[[noreturn]] void refuse(const std::string& op) {
  SW_CHECK_NOT_IMPLEMENTED(
      false,
      "[{}] needs more than one piece at a time, or has no rule that runs it by piece. Work on the pieces, "
      "wrapper.local_shards(), or convert the wrapper with DTensor.from_local(wrapper, mesh, placements).",
      op);
}

class PieceKernel final : public c10::OperatorKernel {
 public:
  explicit PieceKernel(const c10::OperatorHandle& op) : info_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto args = c10::ArrayRef(*stack).slice(stack->size() - info_.n_args());
    Manner manner = manner_.load(std::memory_order_relaxed);
    if (manner == Manner::kUnknown) manner_ = manner = manner_of(info_, args);
    if (manner == Manner::kRefused) refuse(info_.name);
    check_operands(args, manner);
    const BelowAutograd guard;
    manner == Manner::kLists ? PieceListRun(info_, *stack).run() : PieceRun(info_, *stack).run();
  }

 private:
  /// Throws ValueErrors, not TypeErrors: in arithmetic torch takes a TypeError for "try the other operand" and loses its text.
  void check_operands(c10::ArrayRef<c10::IValue> args, Manner manner) const {
    for_each_tensor(args, [&](const at::Tensor& tensor, bool in_list) {
      SW_CHECK_VALUE(!is_dtensor(tensor),
                     "[{}] got a DTensor next to a LocalShardsWrapper. Convert the wrapper with "
                     "DTensor.from_local(wrapper, mesh, placements).",
                     info_.name);
      SW_CHECK_VALUE(is_local_shards(tensor) || tensor.dim() == 0 || (in_list && manner == Manner::kLists),
                     "[{}] got a torch.Tensor of shape [{}] next to a LocalShardsWrapper. Use a wrapper with the same "
                     "offsets, a number, or a 0-dim tensor.",
                     info_.name, fmt::join(tensor.sizes(), ", "));
    });
  }

  OpInfo info_;
  std::atomic<Manner> manner_ = Manner::kUnknown;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) { refuse(OpInfo(op).name); }

}  // namespace

void register_local_shards() {
  auto& aten = registrations("aten", kLocalShardsKey);
  aten.impl("equal", &equal);
  aten.impl("is_pinned", &is_pinned);
  for (const AtenOperator& op : aten_operators())
    if (!op.handle.hasKernelForDispatchKey(kLocalShardsKey) &&
        !op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      aten.impl(op.short_name(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PieceKernel>(op.handle)));
  registrations("_", kLocalShardsKey).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kAutogradLocalShardsKey))
    registrations("_", kAutogradLocalShardsKey).fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace shardwise
