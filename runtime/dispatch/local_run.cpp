#include "runtime/dispatch/local_run.h"

#include "placements/placement_list.h"
#include "runtime/api/local_form.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/number_move.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/subclass.h"
#include "runtime/tensor/traced_pieces.h"
#include "runtime/tensor/view_begin.h"
#include "text/check.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <unordered_map>

namespace shardwise {
namespace {

class LocalRun {
 public:
  LocalRun(BoundCall& call, const Decision& decision)
      : call_(call), decision_(decision), propagation_(*decision.propagation) {
    for (int source : call.op.returned_arg) originals_.push_back(source < 0 ? c10::IValue() : call.arg(source));
    outputs_.resize(propagation_.outputs.size());
    if (call.formed) like_ = call.formed->spec(), form_ = call.formed->local_form();
    if (decision.copied_view) view_reason_ = CopiedView::Reason::kMoved;
    if (call.op.is_view)
      for (const BoundOperand& operand : call.operands)
        if (!view_reason_ && operand.impl && operand.impl->view_link()) view_reason_ = CopiedView::Reason::kShared;
    if (call.op.is_view) origin_ = origin_of(call.leader());
    is_traced_view_ = call.op.is_view && is_traced(call.leader());
    if (call.op.is_view && (view_reason_ || is_traced_view_ || call.op.rule->kernel())) view_args_ = call.args().vec();
  }

  void run(const std::exception_ptr& refusal) {
    if (decision_.moves) move_inputs();
    if (refusal) std::rethrow_exception(refusal);
    leader_ = leader();
    const size_t n_pieces = leader_->boxes().size();
    is_flat_ = (propagation_.joined && leader_->is_member() && !writes_traced_pieces()) ||
               (propagation_.by_box && n_pieces > 1 && may_run_flat());
    copy_shared(is_flat_ ? 1 : n_pieces);
    if (decision_.is_skipped)
      run_without_elements();
    else if (n_pieces == 1 || is_flat_)
      run_only_piece();
    else
      for (size_t piece = 0; piece < n_pieces; ++piece) run_piece(piece);
    finish();
  }

 private:
  const Spec* spec_of(size_t i) const { return call_.spec_of(i, propagation_); }

  const Spec* leader() const {
    if (call_.op.rule->is_shape_only()) return propagation_.outputs[0].get();
    const Spec* result = nullptr;
    for (size_t i = 0; i < call_.operands.size(); ++i)
      if (const Spec* spec = spec_of(i); spec && (!result || !spec->layout().has_one_box_each())) result = spec;
    return result;
  }

  /// True if the call writes traced pieces and can run on them one by one: a graph writes to its inputs, and not to what it joins of them.
  bool writes_traced_pieces() const {
    bool writes = false;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const BoundOperand& operand = call_.operands[i];
      if (const Spec* spec = spec_of(i); spec && !(spec->layout() == leader_->layout())) return false;
      writes |= call_.op.args[operand.arg].is_written && operand.impl && is_traced(operand.impl->local_tensors());
    }
    return writes && decision_.local_args.empty();
  }

  /// True if the kernel may run once on all pieces of a rank in a row: all operands have such pieces or are numbers.
  bool may_run_flat() const {
    const Dims* flat = leader_->flat_sizes();
    if (!flat || call_.op.rule->has_local_args() || call_.op.rule->kernel() || names_dims()) return false;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Spec* spec = spec_of(i);
      const bool is_number = !spec || (spec->numel() == 1 && static_cast<size_t>(spec->dim()) <= flat->size());
      if (!is_number && !(spec->layout() == leader_->layout())) return false;
    }
    return true;
  }

  /// True if an argument asks for a memory format, which only fits the original number of dims.
  bool names_dims() const {
    const auto arg = call_.op.handle.schema().argumentIndexWithName("memory_format");
    if (!arg || call_.arg(*arg).isNone()) return false;
    const auto format = call_.arg(*arg).toMemoryFormat();
    return format != at::MemoryFormat::Preserve && format != at::MemoryFormat::Contiguous;
  }

  void move_inputs() {
    CommScope scope(call_.op.name.c_str());
    moved_.resize(call_.operands.size());
    for (size_t i = 0; i < call_.operands.size(); ++i)
      if (const SpecPtr& to = propagation_.inputs[i]) moved_[i] = moved(call_, call_.operands[i], to);
  }

  /// Kernels get copies of operands that overlap what they write.
  void copy_shared(size_t n_pieces) {
    for (const auto& [read, written] : call_.shared) {
      Shards parts, targets;
      for (size_t piece = 0; piece < n_pieces; ++piece) {
        parts.push_back(local(read, piece));
        targets.push_back(part_of(written, piece));
      }
      copy_overwritten(targets, parts);
      parts_of_shared_[read] = std::move(parts);
    }
  }

  at::Tensor local(size_t i, size_t piece) const {
    const auto known = parts_of_shared_.find(i);
    return known == parts_of_shared_.end() ? part_of(i, piece) : known->second[piece];
  }

  at::Tensor part_of(size_t i, size_t piece) const {
    const Shards& shards =
        decision_.moves && propagation_.inputs[i] ? moved_[i] : call_.operands[i].impl->local_tensors();
    if (is_flat_ && !spec_of(i)->flat_sizes()) return shards[0];
    if (is_flat_) {
      at::Tensor part = flat_part(*spec_of(i), shards);
      if (call_.op.args[call_.operands[i].arg].is_written && is_traced(shards)) [[unlikely]]
        written_parts_.emplace_back(i, part);
      return part;
    }
    if (propagation_.by_box && spec_of(i)->layout().has_one_box_each())
      return narrowed_to(shards[0], leader_->boxes()[piece]);
    return piece < shards.size() ? shards[piece] : no_elements(i);
  }

  /// An empty tensor for an operand of which the kernel reads only dtype and device.
  at::Tensor no_elements(size_t i) const {
    const DTensorImpl& impl = *call_.operands[i].impl;
    return at::full({0}, 0, at::TensorOptions().dtype(impl.spec()->dtype()).device(impl.device()));
  }

  /// Replaces the distributed arguments from `args` on with their local pieces.
  void localize(c10::IValue* args, size_t piece) const {
    for (size_t i = 0; i < call_.operands.size();) {
      const BoundOperand& operand = call_.operands[i];
      c10::IValue& value = args[operand.arg];
      if (value.isTensor()) {
        if (operand.impl) value = local(i, piece);
        ++i;
        continue;
      }
      const bool optional = value.isOptionalTensorList();
      c10::List<at::Tensor> tensors;
      c10::List<std::optional<at::Tensor>> maybes;
      const auto list = value.toListRef();
      for (size_t j = 0; j < list.size(); ++j) {
        const bool is_operand =
            i < call_.operands.size() && call_.operands[i].arg == operand.arg && call_.operands[i].index == j;
        const bool is_ours = is_operand && call_.operands[i].impl;
        if (optional)
          maybes.push_back(is_ours ? std::optional(local(i, piece)) : list[j].toOptional<at::Tensor>());
        else
          tensors.push_back(is_ours ? local(i, piece) : list[j].toTensor());
        i += is_operand;
      }
      value = optional ? c10::IValue(std::move(maybes)) : c10::IValue(std::move(tensors));
    }
    if (!decision_.local_args.empty())
      for (const auto& [arg, replacement] : decision_.local_args[piece]) args[arg] = replacement;
    if (const SymbolicArgument* symbols = KeepsSymbols::argument_of(call_.op.name)) [[unlikely]]
      put_symbols(*symbols, *propagation_.outputs[0], args);
  }

  void run_only_piece() {
    localize(&call_.stack[call_.first], 0);
    compute(call_.stack);
    for (const auto& [i, part] : written_parts_) write_pieces(i, part);
    collect(call_.stack);
  }

  /// Traced pieces share no memory with the local tensor that they form, so what was written to it is copied.
  void write_pieces(size_t i, const at::Tensor& part) const {
    const Shards written = pieces_of(*spec_of(i), part);
    const Shards& pieces = call_.operands[i].impl->local_tensors();
    for (size_t piece = 0; piece < pieces.size(); ++piece) pieces[piece].copy_(written[piece]);
  }

  /// Calls the operator of a subclass even with no elements, because only the class can make its objects, which moves need, and that of a tracer's
  /// symbols, which become those of the results. If it refuses, outputs are filled.
  void run_without_elements() {
    if ((call_.subclass || has_symbols()) && leader_->boxes().size() == 1) try {
        return run_only_piece();
      } catch (const std::exception& refusal) {
        taken_error(refusal);
        for (Shards& pieces : outputs_) pieces.clear();
      }
    for (const BoundOperand& operand : call_.operands)
      if (operand.impl && operand.impl->symbols()) fix_symbols(operand.impl->symbols()->sizes);
    if (const SymbolicArgument* const argument = KeepsSymbols::argument_of(call_.op.name))
      fix_symbols(argument->values);
    fill_outputs();
  }

  bool has_symbols() const {
    return KeepsSymbols::argument_of(call_.op.name) ||
           std::ranges::any_of(call_.operands, [](const auto& each) { return each.impl && each.impl->symbols(); });
  }

  void run_piece(size_t piece) {
    torch::jit::Stack stack(call_.args().begin(), call_.args().end());
    localize(stack.data(), piece);
    compute(stack);
    collect(stack);
  }

  /// True for an operator that torch decomposes before it asks a class.
  bool is_composed() const {
    return call_.op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
           call_.op.name.starts_with("shardwise::");
  }

  /// A class may answer the whole operator, as quantised weights answer linear(), or those that torch decomposes it into, which it is asked for on
  /// one device.
  void compute_on_class(torch::jit::Stack& stack) {
    const torch::jit::Stack given = stack;
    const auto run = [&] {
      const auto composed = c10::DispatchKey::Functionalize;  // the key of the kernel composed of torch's operators
      if (call_.op.name.starts_with("shardwise::") && call_.op.handle.hasKernelForDispatchKey(composed))
        call_.op.handle.callBoxedForDispatchKey(composed, stack);
      else
        call_.op.handle.callBoxed(&stack);
    };
    try {
      return run();
    } catch (const std::exception& refusal) {
      taken_error(refusal);
    }
    stack = given;
    const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard decomposing(local.included_,
                                                       local.excluded_ - c10::autograd_dispatch_keyset);
    const at::NoGradGuard no_grad;
    run();
  }

  void compute(torch::jit::Stack& stack) {
    if (call_.subclass && is_composed()) return compute_on_class(stack);
    const auto& kernel = call_.op.rule->kernel();
    if (!kernel || call_.subclass) return call_.op.handle.callBoxed(&stack);
    const at::Tensor viewed = stack[stack.size() - call_.op.n_args()].toTensor();
    kernel->callBoxed(&stack);
    if (call_.op.is_view && view_reason_ != CopiedView::Reason::kMoved && !stack.back().toTensor().is_alias_of(viewed))
      view_reason_ = CopiedView::Reason::kCopied;
  }

  /// Takes the results at the end of `stack` as the next piece of each output.
  void collect(torch::jit::Stack& stack) {
    size_t next = 0;
    const size_t begin = stack.size() - call_.op.n_returns();
    for (size_t i = 0; i < call_.op.n_returns(); ++i) {
      const c10::IValue& value = stack[begin + i];
      if (call_.op.returned_arg[i] >= 0) {
        next += value.isTensorList() ? value.toListRef().size() : 1;
      } else if (value.isTensor()) {
        take(next++, value.toTensor());
      } else if (value.isTensorList()) {
        for (const c10::IValue& element : value.toListRef()) take(next++, element.toTensor());
      }
    }
    stack.resize(begin);
  }

  void take(size_t i, const at::Tensor& piece) {
    const SpecPtr& spec = propagation_.outputs[i];
    if (!spec) return;
    const bool is_flat = is_flat_ && spec->flat_sizes();
    const c10::IntArrayRef sizes = is_flat ? *spec->flat_sizes() : spec->boxes()[outputs_[i].size()].sizes;
    if (call_.subclass) [[unlikely]]
      check_form(piece, *spec, sizes);
    TORCH_INTERNAL_ASSERT(has_sizes(piece, sizes), "[", call_.op.name, "] gave a piece of sizes ", piece.sizes(),
                          " where ", to_string(*spec), " has ", sizes, " on rank ", spec->mesh()->rank());
    TORCH_INTERNAL_ASSERT(piece.scalar_type() == spec->dtype(), "[", call_.op.name, "] gave a piece of ",
                          piece.scalar_type(), " where its meta kernel gives ", spec->dtype());
    if (is_flat)
      outputs_[i] = pieces_of(*spec, spec->layout().joined_dim() ? piece : piece.contiguous());
    else
      outputs_[i].push_back(piece);
  }

  /// The subclass's own operator made the object, so a mismatch is reported as the class's error, not as an internal one.
  void check_form(const at::Tensor& object, const Spec& spec, c10::IntArrayRef sizes) const {
    SW_CHECK_VALUE(
        object.sizes() == sizes && object.scalar_type() == spec.dtype(),
        "[{}] a {} returns {} [{}], but torch's operator returns {} [{}] on rank {}. Correct its __torch_dispatch__.",
        call_.op.name, class_of(call_.subclass->local_tensors()[0]), c10::toString(object.scalar_type()),
        fmt::join(object.sizes(), ", "), c10::toString(spec.dtype()), fmt::join(sizes, ", "), spec.mesh()->rank());
  }

  /// The device of the operands, unless an argument names one.
  c10::Device device_of_results() const {
    for (const c10::IValue& value : call_.args())
      if (value.isDevice()) return value.toDevice();
    return call_.leader().device();
  }

  void fill_outputs() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const SpecPtr& spec = propagation_.outputs[i];
      if (!spec) continue;
      const auto with_terms = mesh_dims_with_terms(spec->placements());
      const Reduce reduce = with_terms.empty() ? Reduce::kSum : *spec->placements()[with_terms.back()].terms();
      const auto options = at::TensorOptions().dtype(spec->dtype()).device(device_of_results());
      for (const Box& box : spec->boxes())
        outputs_[i].push_back(at::full(box.sizes, identity_of(reduce, spec->dtype()), options));
    }
  }

  at::Tensor wrap_output(size_t i) {
    const SpecPtr& spec = propagation_.outputs[i];
    if (!spec) return {};
    at::Tensor result = call_.op.is_view
                            ? wrap_view(call_.op.name, spec, std::move(outputs_[i]), origin_, decision_.view_offset)
                            : wrap(spec, std::move(outputs_[i]));
    if (view_reason_)
      maybe_dtensor(result)->set_view_link(std::make_shared<CopiedView>(*view_reason_, call_.op, view_args_, i));
    if (is_traced_view_) [[unlikely]]
      note_traced_view(result, call_.leader(), call_.op, view_args_, i);
    if (like_ && spec->layout() == like_->layout()) keep_form(result);
    if (call_.op.is_view && !decision_.moves)
      for (const BoundOperand& operand : call_.operands)
        if (operand.impl) operand.impl->share_arrival(*maybe_dtensor(result));
    return result;
  }

  /// Hooks are not set on a view, because torch makes the result a view only afterwards. Its gradients go to the base, which has hooks.
  void keep_form(const at::Tensor& result) const {
    if (call_.op.is_view)
      maybe_dtensor(result)->set_local_form(form_);
    else
      keep_local_form(result, form_);
  }

  void finish() {
    call_.stack.resize(call_.first);
    const auto& returns = call_.op.handle.schema().returns();
    size_t next = 0;
    for (size_t i = 0; i < call_.op.n_returns(); ++i) {
      if (call_.op.returned_arg[i] >= 0) {
        next += originals_[i].isTensorList() ? originals_[i].toListRef().size() : 1;
        call_.stack.push_back(std::move(originals_[i]));
      } else if (returns[i].type()->kind() == c10::TypeKind::ListType) {
        c10::List<at::Tensor> list;
        while (next < outputs_.size()) list.push_back(wrap_output(next++));
        call_.stack.emplace_back(std::move(list));
      } else {
        call_.stack.emplace_back(wrap_output(next++));
      }
    }
  }

  BoundCall& call_;
  const Decision& decision_;
  const Propagation& propagation_;
  const Spec* leader_ = nullptr;  // its boxes are the pieces
  c10::SmallVector<Shards, 4> moved_;
  std::unordered_map<size_t, Shards> parts_of_shared_;                // by operand
  mutable std::vector<std::pair<size_t, at::Tensor>> written_parts_;  // of traced operands
  c10::SmallVector<Shards, 2> outputs_;
  c10::SmallVector<c10::IValue, 2> originals_;
  std::optional<CopiedView::Reason> view_reason_;
  std::vector<c10::IValue> view_args_;  // the original arguments, if results may be copied views or are traced ones
  bool is_flat_ = false;                // one call for all pieces of a layout with joined boxes
  bool is_traced_view_;
  ViewOrigin origin_;  // of the tensor that results are views of
  SpecPtr like_;       // spec of an operand with a local form; results of its layout get the form
  const LocalForm* form_ = nullptr;
};

}  // namespace

void copy_overwritten(c10::ArrayRef<at::Tensor> written, Shards& read) {
  const auto is_overwritten = [&](size_t i) {
    if (at::get_overlap_status(read[i], written[i]) == at::MemOverlapStatus::Partial) return true;
    return std::ranges::any_of(written.slice(0, i), [&](const at::Tensor& earlier) {
      return read[i].is_alias_of(earlier) && at::get_overlap_status(read[i], earlier) != at::MemOverlapStatus::No;
    });
  };
  const auto places = std::views::iota(size_t{0}, read.size());
  if (std::ranges::any_of(places, is_overwritten))
    for (at::Tensor& piece : read) piece = piece.clone();
}

Shards moved(const BoundCall& call, const BoundOperand& operand, const SpecPtr& to) {
  const bool is_read_only = !call.op.is_view && !call.op.args[operand.arg].is_written;
  Shards pieces = is_read_only ? move_operand(*operand.impl, to) : move(*operand.impl, to);
  return to->flat_sizes() ? joined(*to, std::move(pieces)) : pieces;
}

void run_decided(BoundCall& call, const Decision& decision, const std::exception_ptr& refusal) {
  BelowAutograd guard;
  LocalRun(call, decision).run(refusal);
}

}  // namespace shardwise
