#include "runtime/dispatch/prepare_arguments.h"

#include "placements/placement_list.h"
#include "runtime/api/gradients.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/rule.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <span>

namespace shardwise {
namespace {

class ArgumentPreparation {
 public:
  ArgumentPreparation(const OpInfo& op, torch::jit::Stack& stack)
      : op_(op), args_(stack.end() - static_cast<std::ptrdiff_t>(op.n_args()), stack.end()) {}

  void run() {
    for_each_tensor(args(),
                    [&](const at::Tensor& tensor, size_t arg, size_t index) { prepare_tensor(tensor, arg, index); });
    // torch's formulas take the gradients of all operands from that of the plain result.
    if (writes_plain_)
      for_each_tensor(args(), [](const at::Tensor& tensor, size_t, size_t) { keep_distributed(tensor); });
  }

 private:
  c10::ArrayRef<c10::IValue> args() const { return c10::ArrayRef<c10::IValue>(args_.data(), args_.size()); }

  void prepare_tensor(const at::Tensor& tensor, size_t arg, size_t index) {
    if (!tensor.defined()) return;
    auto* impl = maybe_dtensor(tensor);
    if (!impl && !stays_plain(tensor, arg)) impl = replicate(tensor, arg, index);
    if (first_ == op_.n_args()) first_ = arg;
    if (!impl) {
      if (records(tensor)) keep_gradient_kind(tensor);
      return;
    }
    prepare_operand(*impl);
    if (op_.args[arg].is_written && !takes_expanded(*impl))
      check_writable(op_.name, impl->spec()->sizes(), impl->spec()->strides());
  }

  /// True for writes that torch allows into expanded tensors: one value for all elements, or a mask if each rank has all elements that
  /// share memory. False for views whose values were moved, because they are copied back.
  bool takes_expanded(const DTensorImpl& impl) const {
    if (impl.view_link()) return false;
    if (op_.name == "aten::zero_" || op_.name == "aten::fill_.Scalar") return true;
    if (!op_.name.starts_with("aten::masked_fill_.")) return false;
    const Spec& spec = *impl.spec();
    Dims expanded;
    for (int64_t dim = 0; dim < spec.dim(); ++dim)
      if (spec.strides()[dim] == 0) expanded.push_back(dim);
    return c10::ArrayRef(whole_along(spec.placements(), expanded)) == spec.placements();
  }

  /// True for numbers. Plain scalars in a written list are the step counts of a fused optimizer; its learning rate may have any shape.
  bool stays_plain(const at::Tensor& tensor, size_t arg) const {
    if (tensor.dim() != 0 && !is_rate(tensor, arg)) return false;
    return !leads_element(arg) && !(op_.args[arg].is_written && args_[arg].isTensor());
  }

  /// True for the number, such as a learning rate, that a fused optimizer takes besides its lists.
  bool is_rate(const at::Tensor& tensor, size_t arg) const {
    return op_.rule && op_.rule->is_per_element() && !op_.rule->scratch().empty() && args_[arg].isTensor() &&
           tensor.numel() == 1;
  }

  /// True for elements of the first list, which determine the layouts of the other lists' elements.
  bool leads_element(size_t arg) const {
    return op_.rule && op_.rule->is_per_element() && args_[arg].isTensorList() &&
           (first_ == op_.n_args() || first_ == arg);
  }

  /// Replaces a plain tensor with a replica and returns it. Throws: c10::ValueError where check_plain() does.
  DTensorImpl* replicate(const at::Tensor& plain, size_t arg, size_t index) {
    const DTensorImpl* const neighbour = first_distributed(args());
    TORCH_INTERNAL_ASSERT(neighbour, "[", op_.name, "] reached Shardwise without a distributed tensor");
    const auto& mesh = neighbour->spec()->mesh();
    check_plain(op_, plain, arg, mesh);
    writes_plain_ |= op_.args[arg].is_written;
    auto spec =
        Spec::intern(mesh, plain.sizes(), std::vector<Placement>(mesh->ndim()), plain.strides(), plain.scalar_type());
    const at::Tensor replica = wrap(std::move(spec), mesh->is_member() ? Shards{plain} : Shards{});
    replace_tensor(args_[arg], index, replica);
    return maybe_dtensor(replica);
  }

  const OpInfo& op_;
  const std::span<c10::IValue> args_;
  size_t first_ = op_.n_args();  // the first argument with a tensor
  bool writes_plain_ = false;
};

}  // namespace

void prepare_arguments(const OpInfo& op, torch::jit::Stack& stack) { ArgumentPreparation(op, stack).run(); }

void check_writable(const std::string& op, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (c10::multiply_integers(sizes) == 0) return;
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    SW_CHECK(sizes[dim] < 2 || strides[dim] != 0,
             "[{}] cannot write to an expanded tensor of shape [{}]: along dim {} its elements share memory. Write to "
             "a clone() of it.",
             op, fmt::join(sizes, ", "), dim);
}

}  // namespace shardwise
