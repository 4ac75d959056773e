#include "wrappers/piece_run.h"

#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/spec.h"
#include "text/check.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

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

}  // namespace

void run_pieces(const OpInfo& op, torch::jit::Stack& stack) {
  BelowAutograd guard;
  PieceRun(op, stack).run();
}

void run_piece_lists(const OpInfo& op, torch::jit::Stack& stack) {
  BelowAutograd guard;
  PieceListRun(op, stack).run();
}

}  // namespace shardwise
