#include "wrappers/local_shards_dispatch.h"

#include "runtime/rules/aten_operators.h"
#include "runtime/rules/propagate.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"
#include "wrappers/piece_run.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace shardwise {
namespace {

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
    manner == Manner::kLists ? run_piece_lists(info_, *stack) : run_pieces(info_, *stack);
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
