#include "runtime/dispatch/gather_fallback.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/number_move.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/view_begin.h"
#include "text/check.h"

#include <mutex>
#include <unordered_set>

namespace shardwise {
namespace {

void warn_once(const std::string& op) {
  static std::mutex mutex;
  static auto* warned = new std::unordered_set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!warned->insert(op).second) return;
  }
  TORCH_WARN("[", op,
             "] has no sharding rule for these layouts: its inputs were gathered and every rank computed all of it. "
             "(Said once per operator.)");
}

/// True for operators that do not read the tensor they write to, so that its values need not be gathered.
bool overwrites(const OpInfo& op) { return op.name == "aten::fill_.Scalar" || op.name == "aten::fill_.Tensor"; }

class ReplicatedRun {
 public:
  explicit ReplicatedRun(BoundCall& call) : call_(call), mesh_(call.leader().spec()->mesh()), mesh_of_results_(mesh_) {
    for (const c10::IValue& arg : call.args())
      if (arg.isDevice()) mesh_of_results_ = mesh_->on(arg.toDevice().type());
    for (const BoundOperand& operand : call.operands)
      if (operand.impl) check_same_mesh(call.op.name, mesh_, operand.impl->spec()->mesh());
    for (int source : call.op.returned_arg) originals_.push_back(source < 0 ? c10::IValue() : call.arg(source));
  }

  void run() {
    if (!mesh_->is_member()) return run_outside();
    replicate();
    call_.op.handle.callBoxed(&call_.stack);
    for (Written& written : written_) give_back(written);
    wrap_results();
  }

 private:
  struct Written {
    at::Tensor tensor;  // the distributed tensor
    at::Tensor replica;
  };

  void replicate() {
    CommScope scope(call_.op.name.c_str());
    bool moved = false;
    for (const BoundOperand& operand : call_.operands) {
      if (!operand.impl) continue;
      const SpecPtr& spec = operand.impl->spec();
      auto replicated = spec->replicated();
      const auto& arg = call_.op.args[operand.arg];
      const bool is_read_only = !arg.is_written && !arg.is_aliased, is_read = !arg.is_written || !overwrites(call_.op);
      const at::Tensor replica = !is_read       ? empty_piece(*replicated, spec->sizes(), operand.impl->device())
                                 : is_read_only ? move_operand(*operand.impl, replicated)[0]
                                                : move(*operand.impl, replicated)[0];
      moved |= is_read && replicated != spec;
      if (arg.is_aliased) note_view(replicated != spec, *operand.impl, replica);
      c10::IValue& value = call_.arg(operand.arg);
      if (arg.is_written) written_.push_back({tensor_at(value, operand.index), replica});
      replacements_.push_back({operand.arg, operand.index, replica});
    }
    if (view_reason_ || traced_source_) view_args_ = call_.args().vec();
    for (const auto& [arg, index, replica] : replacements_) replace_tensor(call_.arg(arg), index, replica);
    const bool is_meant = call_.op.rule && call_.op.rule->is_gathered();
    if (moved && !is_meant) warn_once(call_.op.name);
  }

  void note_view(bool is_moved, const DTensorImpl& source, const at::Tensor& replica) {
    origin_ = origin_of(source);
    if (is_traced(source)) traced_source_ = &source;
    begin_of_replica_ = replica.storage_offset();
    if (is_moved)
      view_reason_ = CopiedView::Reason::kMoved;
    else if (source.view_link())
      view_reason_ = CopiedView::Reason::kShared;
  }

  static at::Tensor tensor_at(const c10::IValue& value, size_t index) {
    return value.isTensor() ? value.toTensor() : value.toListRef()[index].toTensor();
  }

  SpecPtr replicated_like(const at::Tensor& local) const {
    return Spec::intern(mesh_of_results_, local.sizes(), std::vector<Placement>(mesh_->ndim()), local.strides(),
                        local.scalar_type());
  }

  /// Moves the values written to the replica back to the pieces.
  void give_back(const Written& written) const {
    auto* impl = maybe_dtensor(written.tensor);
    SW_CHECK_NOT_IMPLEMENTED(written.replica.sizes() == impl->spec()->sizes(),
                             "[{}] gives a DTensor of shape [{}] the shape [{}] in place. Call resize_() first, or the "
                             "operator that returns a new tensor.",
                             call_.op.name, fmt::join(impl->spec()->sizes(), ", "),
                             fmt::join(written.replica.sizes(), ", "));
    const Shards pieces = move(impl->spec()->replicated(), {written.replica}, impl->spec());
    for (size_t i = 0; i < pieces.size(); ++i)
      if (!pieces[i].is_same(impl->shards()[i])) impl->shards()[i].copy_(pieces[i]);
  }

  /// `output`: the index among the results, or within the result's list.
  at::Tensor wrap_replica(const at::Tensor& local, size_t output) const {
    if (!local.defined()) return {};
    at::Tensor result = call_.op.is_view ? wrap_view(call_.op.name, replicated_like(local), {local}, origin_,
                                                     local.storage_offset() - begin_of_replica_)
                                         : wrap(replicated_like(local), {local});
    if (view_reason_)
      maybe_dtensor(result)->set_view_link(std::make_shared<CopiedView>(*view_reason_, call_.op, view_args_, output));
    if (traced_source_) note_traced_view(result, *traced_source_, call_.op, view_args_, output);
    return result;
  }

  void wrap_results() {
    const size_t begin = call_.stack.size() - call_.op.n_returns();
    for (size_t i = 0; i < call_.op.n_returns(); ++i) {
      c10::IValue& value = call_.stack[begin + i];
      if (call_.op.returned_arg[i] >= 0) {
        value = std::move(originals_[i]);
      } else if (value.isTensor()) {
        value = wrap_replica(value.toTensor(), i);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(wrap_replica(tensor, list.size()));
        value = std::move(list);
      }
    }
  }

  /// On a non-member nothing is computed; only the results' specs are inferred.
  void run_outside() {
    OpCall dense = call_.to_op_call();
    bool only_tensors = true;
    for (const auto& result : call_.op.handle.schema().returns())
      only_tensors &= result.type()->kind() == c10::TypeKind::TensorType;
    if (!only_tensors || !infer_outputs(dense)) refuse_outside(call_.op.name, *mesh_);
    call_.stack.resize(call_.first);
    for (size_t i = 0; i < dense.outputs.size(); ++i) {
      const DenseOutput& output = dense.outputs[i];
      if (call_.op.returned_arg[i] >= 0)
        call_.stack.push_back(originals_[i]);
      else if (output.dtype == c10::ScalarType::Undefined)
        call_.stack.emplace_back(at::Tensor());
      else
        call_.stack.emplace_back(wrap(Spec::intern(mesh_of_results_, output.sizes,
                                                   std::vector<Placement>(mesh_->ndim()), output.strides, output.dtype),
                                      {}));
    }
  }

  BoundCall& call_;
  MeshPtr mesh_;
  MeshPtr mesh_of_results_;  // an argument may name another device than the operands have
  std::optional<CopiedView::Reason> view_reason_;
  const DTensorImpl* traced_source_ = nullptr;  // the tensor that results are views of, in a traced program
  std::vector<c10::IValue> view_args_;          // the original arguments, if results are copied views or traced ones
  ViewOrigin origin_;                           // of the tensor that results are views of
  int64_t begin_of_replica_ = 0;                // of the replica that is viewed, in elements
  c10::SmallVector<c10::IValue, 2> originals_;
  std::vector<std::tuple<size_t, size_t, at::Tensor>> replacements_;
  std::vector<Written> written_;
};

}  // namespace

void refuse_outside(const std::string& op, const DeviceMesh& mesh) {
  SW_CHECK_NOT_IMPLEMENTED(false,
                           "[{}] returns a result that depends on values, which rank {} does not have because it is "
                           "outside the mesh {}. Call it only on ranks of the mesh.",
                           op, mesh.rank(), to_string(mesh));
}

void run_gathered(BoundCall& call) {
  BelowAutograd guard;
  ReplicatedRun(call).run();
}

}  // namespace shardwise
