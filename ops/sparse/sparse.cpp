#include "ops/sparse/sparse.h"

#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/registrations.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace shardwise {
namespace {

/// How an operator on sparse tensors runs on their local shards, as one value per operator.
///
///   {"neg", {.is_linear = true}}, {"sqrt", {.is_of_coalesced = true}}
///
/// The leader is the operand that is written to, else a dense operand if the result is dense, else the first sparse operand. All other operands are
/// redistributed to the leader's layout, and the operator runs on each local shard.
struct SparseRule {
  enum class Result : uint8_t {
    kSame,   // the leader's indices with other values; new indices if two operands are sparse
    kOther,  // new indices
    kSum,    // dense if an operand is dense, else new indices
    kDense,
  };
  Result result = Result::kSame;
  /// Partial sums pass.
  bool is_linear = false;
  /// Partial sums pass if the other operands are 0-dim.
  bool is_linear_by_numbers = false;
  /// Needs one entry per index: operands are coalesced first.
  bool is_of_coalesced = false;
};

using Result = SparseRule::Result;

const std::unordered_map<std::string_view, SparseRule>& rules() {
  static const auto* rules = [] {
    auto* table = new std::unordered_map<std::string_view, SparseRule>;
    const auto add = [&](std::initializer_list<const char*> names, const SparseRule& rule) {
      for (const char* name : names) table->emplace(name, rule);
    };
    add({"clone", "copy", "neg"}, {.is_linear = true});
    add({"div", "mul"}, {.is_linear_by_numbers = true});
    add({"div.Tensor_mode", "div.Scalar_mode"}, {});  // they round
    add({"add", "sub"}, {.result = Result::kSum, .is_linear = true});
    add({"empty_like", "zero", "zeros_like"}, {.result = Result::kOther, .is_linear = true});
    add({"sparse_mask", "_to_copy"}, {});  // a cast to integers truncates each entry, so it is not linear
    add({"_to_dense"}, {.result = Result::kDense, .is_linear = true});
    // These map 0 to 0, so that indices without an entry stay without one.
    add({"abs",   "asin", "asinh",   "atan",  "atanh", "ceil",       "deg2rad", "erf",     "erfinv", "expm1",
         "floor", "frac", "isinf",   "isnan", "log1p", "nan_to_num", "pow",     "rad2deg", "relu",   "round",
         "sgn",   "sign", "signbit", "sin",   "sinh",  "sqrt",       "tan",     "tanh",    "trunc"},
        {.is_of_coalesced = true});
    return table;
  }();
  return *rules;
}

/// Runs one call whose arguments are on `stack`, and leaves its result there.
/// Throws: as dispatch(), and c10::NotImplementedError for results whose sizes differ from the leader's.
class SparseCall {
 public:
  SparseCall(const OpInfo& op, const SparseRule& rule, torch::jit::Stack& stack)
      : op_(op), rule_(rule), stack_(stack), first_(stack.size() - op.n_args()) {
    bind();
    lead();
    move_others();
  }

  void run() {
    const MemoryWrite write = is_in_place() ? leader().begin_write() : MemoryWrite(nullptr);
    std::vector<at::Tensor> pieces;
    {
      BelowAutograd guard;
      const Spec& spec = *leader().spec();
      for (size_t i = 0; i < spec.boxes().size(); ++i) {
        pieces.push_back(computed([&](size_t operand) { return local(operand, i); }));
        TORCH_INTERNAL_ASSERT(pieces.back().sizes() == spec.boxes()[i].sizes, op_.name,
                              " gives other sizes than its operand's");
      }
      if (pieces.empty()) sample_ = computed([&](size_t operand) { return sample_of(operand); });
    }
    at::Tensor result = is_in_place() ? written() : wrapped(pieces);
    stack_.resize(first_);
    stack_.emplace_back(std::move(result));
  }

 private:
  struct Given {
    size_t arg;
    at::Tensor tensor;
    bool is_number() const { return tensor.dim() == 0; }
  };

  bool is_in_place() const { return op_.writes; }
  const DTensorImpl& leader() const { return *maybe_dtensor(operands_[leader_].tensor); }

  void bind() {
    MeshPtr mesh;
    for (size_t i = 0; i < op_.n_args(); ++i)
      if (const auto& value = stack_[first_ + i]; value.isTensor() && value.toTensor().defined()) {
        operands_.push_back({i, value.toTensor()});
        if (const auto* impl = maybe_dtensor(value.toTensor()); impl && !mesh) mesh = impl->spec()->mesh();
      }
    for (Given& operand : operands_) {
      const auto* impl = maybe_dtensor(operand.tensor);
      if (!impl && !operand.is_number()) {
        check_plain(op_, operand.tensor, operand.arg, mesh);
        operand.tensor = replica_of(operand.tensor, mesh);
      }
      if (impl) check_same_mesh(op_.name, mesh, impl->spec()->mesh());
    }
  }

  /// Chooses the leader, and reduces and coalesces it if the rule requires that.
  void lead() {
    const auto is_dense = [](const Given& operand) { return !operand.tensor.is_sparse() && !operand.is_number(); };
    const bool has_dense = std::ranges::any_of(operands_, is_dense);
    gives_dense_ = rule_.result == Result::kDense || (rule_.result == Result::kSum && has_dense);
    const auto found = std::ranges::find_if(operands_, [&](const Given& operand) {
      if (is_in_place()) return op_.args[operand.arg].is_written;
      return gives_dense_ && has_dense ? is_dense(operand) : operand.tensor.is_sparse();
    });
    leader_ = found - operands_.begin();
    at::Tensor& given = operands_[leader_].tensor;
    n_sparse_ = std::ranges::count_if(operands_, [](const Given& operand) { return operand.tensor.is_sparse(); });
    const bool by_numbers = std::ranges::all_of(
        operands_, [&](const Given& operand) { return &operand.tensor == &given || operand.is_number(); });
    const bool may_be_partial = rule_.is_linear || (rule_.is_linear_by_numbers && by_numbers);
    if (const Spec& spec = *leader().spec(); spec.layout().has_terms() && !may_be_partial) {
      check_not_in_place("a Partial");
      given = redistribute(given, without_partial(spec.placements()));
    }
    if (rule_.is_of_coalesced && !leader().entries()->is_coalesced) {
      check_not_in_place("uncoalesced entries");
      given = at::_coalesce(given);
    }
  }

  void check_not_in_place(const char* what) const {
    SW_CHECK_VALUE(!is_in_place(),
                   "[{}] cannot write to {}: {}. Use the operator that gives a new tensor, or coalesce() first.",
                   op_.name, what, to_string(*leader().spec()));
  }

  void move_others() {
    const CommScope scope(op_.name.c_str());
    const Spec& spec = *leader().spec();
    for (Given& operand : operands_) {
      if (&operand == &operands_[leader_] || !is_dtensor(operand.tensor)) continue;
      const bool is_number = operand.is_number();
      SW_CHECK_NOT_IMPLEMENTED(is_number || operand.tensor.sizes() == spec.sizes(),
                               "[{}] got operands of shapes [{}] and [{}]: sparse DTensors are not broadcast. Expand "
                               "one, or use to_dense().",
                               op_.name, fmt::join(spec.sizes(), ", "), fmt::join(operand.tensor.sizes(), ", "));
      Placements to = is_number ? Placements(spec.placements().size()) : spec.placements().vec();
      operand.tensor = redistribute(operand.tensor, std::move(to));
    }
  }

  at::Tensor local(size_t operand, size_t piece) const {
    const auto* impl = maybe_dtensor(operands_[operand].tensor);
    if (!impl) return operands_[operand].tensor;
    return impl->shards()[operands_[operand].is_number() ? 0 : piece];
  }

  /// An empty tensor like the operand, for ranks outside the mesh and those without a shard.
  at::Tensor sample_of(size_t operand) const {
    const auto* impl = maybe_dtensor(operands_[operand].tensor);
    if (!impl) return operands_[operand].tensor;
    const auto options = at::TensorOptions().dtype(impl->spec()->dtype()).device(impl->device());
    const Dims sizes(impl->spec()->dim(), 0);
    if (sizes.empty()) return at::ones({}, options);
    if (!impl->is_sparse()) return at::empty(sizes, options);
    const int64_t sparse_dim = impl->entries()->sparse_dim;
    const Dims values(sizes.size() - sparse_dim + 1, 0);
    return at::_sparse_coo_tensor_unsafe(at::empty({sparse_dim, 0}, options.dtype(at::kLong)),
                                         at::empty(values, options), sizes);
  }

  template <class Local>
  at::Tensor computed(const Local& local_of) const {
    torch::jit::Stack stack(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    for (size_t i = 0; i < operands_.size(); ++i) stack[operands_[i].arg] = local_of(i);
    op_.handle.callBoxed(&stack);
    return stack.at(0).toTensor();
  }

  bool keeps_entries() const { return rule_.result == Result::kSame && n_sparse_ < 2; }

  at::Tensor written() const {
    const at::Tensor tensor = operands_[leader_].tensor;
    if (leader().is_sparse() && !keeps_entries()) *leader().entries() = {leader().entries()->sparse_dim};
    return tensor;
  }

  at::Tensor wrapped(const std::vector<at::Tensor>& pieces) const {
    const at::Tensor& any = pieces.empty() ? sample_ : pieces[0];
    const Spec& spec = *leader().spec();
    const bool is_new = leader().is_sparse() && !any.is_sparse();
    auto result_spec = Spec::intern(spec.mesh(), spec.layout(),
                                    is_new ? row_major_strides(spec.sizes()) : spec.strides(), any.scalar_type());
    Shards shards(pieces.begin(), pieces.end());
    if (!any.is_sparse()) return wrap(std::move(result_spec), std::move(shards));
    SparseEntries entries{leader().entries()->sparse_dim};
    if (keeps_entries()) entries = *leader().entries();
    return wrap_sparse(std::move(result_spec), std::move(shards), std::move(entries));
  }

  const OpInfo& op_;
  const SparseRule& rule_;
  torch::jit::Stack& stack_;
  size_t first_;
  std::vector<Given> operands_;
  size_t leader_ = 0;
  int64_t n_sparse_ = 0;
  bool gives_dense_ = false;
  at::Tensor sample_;
};

/// The rule of an aten operator, in place or not; null if it has none, and for out=.
const SparseRule* find_sparse_rule(const OpInfo& op) {
  const std::string_view full = std::string_view(op.name).substr(sizeof("aten::") - 1);
  const size_t dot = std::min(full.find('.'), full.size());
  const bool is_in_place = full.substr(0, dot).ends_with('_');
  const std::string name(full.substr(0, dot - is_in_place));
  auto found = rules().find(name + std::string(full.substr(dot)));
  if (found == rules().end()) found = rules().find(name);
  if (found == rules().end() || op.n_returns() != 1) return nullptr;
  const bool is_out = op.writes && !op.args[0].is_written;
  return is_out ? nullptr : &found->second;
}

constexpr auto kSparseKey = c10::DispatchKey::SparsePrivateUse2;

[[noreturn]] void refuse(const std::string& op) {
  SW_CHECK_NOT_IMPLEMENTED(
      false, "[{}] is not implemented for sparse DTensors. Use to_dense(), or work on coalesce().values().", op);
}

class SparseKernel final : public c10::OperatorKernel {
 public:
  explicit SparseKernel(const c10::OperatorHandle& op) : info_(op), rule_(find_sparse_rule(info_)) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (!rule_) refuse(info_.name);
    const CommScope scope(info_.name.c_str());
    const KernelSpan span(info_.name);
    SparseCall(info_, *rule_, *stack).run();
  }

 private:
  OpInfo info_;
  const SparseRule* rule_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  refuse(c10::toString(op.operator_name()));
}

/// True if torch composes the operator of other operators, for any layout of the tensors.
bool decomposes(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  return op.operator_name().name.starts_with("aten::_foreach_") &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

/// The box's first index as a column [sparse dims, 1], undefined where it is all zeros.
at::Tensor first_index(const Box& box, const at::Tensor& indices) {
  const std::vector<int64_t> first(box.offsets.begin(), box.offsets.begin() + indices.size(0));
  if (std::ranges::all_of(first, [](int64_t offset) { return offset == 0; })) return {};
  return at::tensor(first, at::kLong).unsqueeze(1).to(indices.device());
}

}  // namespace

at::Tensor indices_within(const at::Tensor& indices, const Box& box) {
  const at::Tensor first = first_index(box, indices);
  return first.defined() ? indices - first : indices;
}

at::Tensor indices_of_whole(const at::Tensor& indices, const Box& box) {
  const at::Tensor first = first_index(box, indices);
  return first.defined() ? indices + first : indices;
}

at::Tensor columns_of(at::Tensor values, const Box& box, int64_t sparse_dim) {
  for (int64_t dim = 1; dim < values.dim(); ++dim)
    if (const int64_t of = dim + sparse_dim - 1; values.size(dim) != box.sizes[of])
      values = values.narrow(dim, box.offsets[of], box.sizes[of]);
  return values;
}

AtenKernels& aten_sparse_kernels() {
  static auto* kernels = new AtenKernels(kSparseKey);  // registrations last as long as the process
  return *kernels;
}

void register_sparse() {
  for (const AtenOperator& op : aten_operators())
    if (!decomposes(op.handle) && !op.handle.hasKernelForDispatchKey(kSparseKey))
      aten_sparse_kernels().impl(op.short_name(),
                                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseKernel>(op.handle)));
  registrations("_", kSparseKey).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace shardwise
