// ops/products/matmul.cpp: contractions. A sharded contracted dim gives Partial(sum), to which a bias is added once. aten::linear has a rule of its own,
// so that no batch dim is flattened.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/rules/move_bytes.h"
#include "runtime/tensor/autograd_node.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <mutex>
#include <numeric>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

Dims sizes_of_product(c10::IntArrayRef left, c10::IntArrayRef right) {
  auto batch = [](c10::IntArrayRef sizes) {
    return sizes.size() > 2 ? sizes.slice(0, sizes.size() - 2) : c10::IntArrayRef();
  };
  Dims sizes = at::infer_size_dimvector(batch(left), batch(right));
  if (left.size() > 1) sizes.push_back(left[left.size() - 2]);
  if (right.size() > 1) sizes.push_back(right.back());
  return sizes;
}

/// "…mk,…kn->…mn" with broadcast batch dims; a vector on the left has no m, one on the right no n. The contracted factor comes first: of choices that
/// move as many bytes it is the one to shard.
void describe_matmul(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef left = call.operands[0].sizes, right = call.operands[1].sizes;
  TORCH_CHECK(!left.empty() && !right.empty());  // torch reports it
  const Dims result = sizes_of_product(left, right);
  Axes left_axes(left.size()), right_axes(right.size()), result_axes(result.size());
  const int contracted = signature.add_factor(left.back());
  left_axes.back().factor = contracted;
  right_axes[right.size() > 1 ? right.size() - 2 : 0].factor = contracted;

  size_t n_batch = result.size();
  if (right.size() > 1) right_axes.back().factor = result_axes[--n_batch].factor = signature.add_factor(right.back());
  if (left.size() > 1)
    left_axes[left.size() - 2].factor = result_axes[--n_batch].factor = signature.add_factor(left[left.size() - 2]);
  for (size_t dim = 0; dim < n_batch; ++dim) result_axes[dim].factor = signature.add_factor(result[dim]);
  auto share_batch = [&](c10::IntArrayRef sizes, Axes& axes) {
    for (size_t dim = 0; dim + 2 < sizes.size(); ++dim) {
      const size_t at = n_batch + 2 + dim - sizes.size();
      if (sizes[dim] == result[at]) axes[dim] = result_axes[at];
    }
  };
  share_batch(left, left_axes);
  share_batch(right, right_axes);
  signature.set({left_axes, right_axes}, {result_axes});
}

/// The `product` of the other operands plus operand `at`, if there is one, which broadcasts to it.
void describe_plus(const Rule& product, size_t at, const OpCall& call, Signature& signature) {
  if (at >= call.operands.size()) {
    signature = product.signature(call);
    return;
  }
  OpCall factors = call;
  factors.operands.erase(factors.operands.begin() + at);
  signature = product.signature(factors);
  Dims result;
  for (const Axis& axis : signature.outputs[0]) result.push_back(signature.factors[axis.factor].size);
  const Axes bias = broadcast_axes(call.operands[at].sizes, result, signature.outputs[0]);
  signature.inputs.insert(signature.inputs.begin() + at, bias);
  signature.additive = {static_cast<int>(at)};
}

/// The product of operands 1 and 2 plus operand 0.
Rule plus_bias(const char* notation) {
  const Rule product(notation);
  const auto describe = [product](const OpCall& call, Signature& signature) {
    describe_plus(product, /*at=*/0, call, signature);
  };
  return Rule("bias + " + to_string(product), describe).multilinear().sampled();
}

/// The kernel of addbmm_, which gives `self` the product's shape, as in torch. The memory of a replica grows; any other tensor gets new memory.
at::Tensor& add_products(at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2, const at::Scalar& beta,
                         const at::Scalar& alpha) {
  const at::Tensor sum = self.addbmm(batch1, batch2, beta, alpha);
  if (sum.sizes() != self.sizes() && !spec_of(self)->layout().is_replicated()) return self.set_(sum);
  self.resize_(sum.sizes()).copy_(sum);
  return self;
}

/// A weight of one dim has no n.
void describe_linear(const OpCall& call, Signature& signature) {
  static const Rule of_matrix("…k,nk->…n"), of_vector("…k,k->…");
  describe_plus(call.operands[1].sizes.size() == 1 ? of_vector : of_matrix, /*at=*/2, call, signature);
}

/// The sizes of both factors, and the factors that gradients need: a factor is undefined unless the other one requires a gradient.
struct Factors {
  at::Tensor left, right;
  c10::SymDimVector
      left_sizes;  // empty if the gradients do not depend on them: `left` is no vector, and `right` one matrix or vector for its whole batch
  c10::SymDimVector right_sizes;
};

/// Returns the gradients of left, right and a bias that are `wanted`. Differentiable.
using ProductGradients = variable_list (*)(const at::Tensor& grad, const Factors& factors, const Wanted& wanted);

/// A node of its own, since products are called often: with_derivative() would allocate twice more.
struct ProductBackward final : torch::autograd::Node {
  const char* name_in_graph = "";
  ProductGradients gradients = nullptr;
  torch::autograd::SavedVariable left, right;
  c10::SymDimVector left_sizes, right_sizes;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    if (!grads[0].defined()) return variable_list(num_outputs());
    Wanted wanted{};
    for (size_t i = 0; i < num_outputs(); ++i) wanted[i] = task_should_compute_output(i);
    const Factors factors{wanted[1] ? left.unpack() : at::Tensor(), wanted[0] ? right.unpack() : at::Tensor(),
                          left_sizes, right_sizes};
    variable_list result = gradients(grads[0], factors, wanted);
    result.resize(num_outputs());
    return result;
  }
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    left.reset_data();
    right.reset_data();
  }
  std::string name() const override { return name_in_graph; }
};

/// Returns `product`, computed below autograd, with its history if gradients are recorded. torch's formulas save both factors; this node keeps those
/// that the gradients need: for x @ w of a frozen w it keeps w, and x may be freed, or written to.
at::Tensor with_history(at::Tensor product, const char* name, ProductGradients gradients, const at::Tensor& left,
                        const at::Tensor& right, const at::Tensor& bias = {}, bool needs_left_sizes = false) {
  const bool needs_left = left.requires_grad(), needs_right = right.requires_grad();
  if (!c10::GradMode::is_enabled() || !(needs_left || needs_right || (bias.defined() && bias.requires_grad())))
    return product;
  auto node = make_node<ProductBackward>();
  node->set_next_edges(bias.defined() ? torch::autograd::collect_next_edges(left, right, bias)
                                      : torch::autograd::collect_next_edges(left, right));
  node->name_in_graph = name;
  node->gradients = gradients;
  if (needs_right) node->left = torch::autograd::SavedVariable(left, /*is_output=*/false);
  if (needs_left) node->right = torch::autograd::SavedVariable(right, /*is_output=*/false);
  if (needs_left_sizes) node->left_sizes = c10::SymDimVector(left.sym_sizes());
  node->right_sizes = c10::SymDimVector(right.sym_sizes());
  torch::autograd::set_history(product, node);
  return product;
}

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor.flatten(0, -2); }

at::Tensor compute_weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  return rows_of(grad).t().mm(rows_of(input));
}

/// The gradient of a matrix that multiplied a batch. Contracts all dims but the last: [..., n] and [..., k] give [n, k]. All batch dims stay sharded,
/// and the result is then Partial. (Flattening them for a matrix product would gather all but the first.) Differentiable.
at::Tensor weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  static const auto op = operator_of<decltype(compute_weight_grad)>("shardwise::linear_weight_grad");
  return op.call(grad, input);
}

at::Tensor differentiable_weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  const at::Tensor result = below_derivatives([&] { return weight_grad(grad, input); });
  return with_derivative({grad, input}, result, {grad, input}, "LinearWeightGradBackward",
                         [](const at::Tensor& outer, const variable_list& saved, const Wanted& wanted) {
                           variable_list grads(2);
                           if (wanted[0]) grads[0] = saved[1].conj_physical().matmul(outer.mT());
                           if (wanted[1]) grads[1] = saved[0].conj_physical().matmul(outer);
                           return grads;
                         });
}

/// Returns `grad`, the gradient of the product of `left` and `right`, in the layout that serves the gradients of both factors, so that a Partial is
/// reduced once. The gradient of the left factor is the product of `grad` and `by`. That of `right` is the product of `left`, transposed, and `grad`; it
/// is contracted over all batch dims if `is_matrix`.
at::Tensor reduced_once(const at::Tensor& grad, const at::Tensor& by, const at::Tensor& left, const at::Tensor& right,
                        bool is_matrix) {
  static const ByRule product("shardwise::matmul"), contraction("shardwise::linear_weight_grad");
  if (!is_dtensor(grad) || !is_dtensor(left) || !is_dtensor(right)) return grad;
  const SpecPtr& spec = spec_of(grad);
  const bool are_on_one_mesh = spec_of(left)->mesh() == spec->mesh() && spec_of(right)->mesh() == spec->mesh();
  if (!spec->layout().has_terms() || !are_on_one_mesh) return grad;
  const auto one = product.layouts(grad, by);
  const auto other = is_matrix ? contraction.layouts(left, grad) : product.layouts(left.mT(), grad);
  if (one.empty() || other.empty()) return grad;
  const SpecPtr shared = layout_reduced_once(spec, one[0] ? one[0] : spec, other[1] ? other[1] : spec, *spec_of(right));
  if (shared->placements() == spec->placements()) return grad;
  const CommScope scope("shardwise::matmul");
  return redistribute(grad, shared->placements().vec());
}

/// `grad` of [..., m, n] as if vectors had been matrices of one row (left) or one column (right).
at::Tensor as_matrices(const at::Tensor& grad, bool left_is_vector, bool right_is_vector) {
  at::Tensor result = right_is_vector ? grad.unsqueeze(-1) : grad;
  return left_is_vector ? result.unsqueeze(-2) : result;
}

variable_list matmul_gradients(const at::Tensor& grad, const Factors& factors, const Wanted& wanted) {
  const bool left_is_vector = factors.left_sizes.size() == 1, right_is_vector = factors.right_sizes.size() == 1;
  at::Tensor grads = as_matrices(grad, left_is_vector, right_is_vector), rows, columns;
  if (wanted[0]) columns = (right_is_vector ? factors.right.unsqueeze(1) : factors.right).mT().conj_physical();
  if (wanted[1]) rows = (left_is_vector ? factors.left.unsqueeze(0) : factors.left).conj_physical();
  const bool is_matrix = factors.right_sizes.size() <= 2;
  if (wanted[0] && wanted[1]) grads = reduced_once(grads, columns, rows, factors.right, is_matrix);
  variable_list result(2);
  if (wanted[0]) {
    c10::SymDimVector sizes(factors.left_sizes);
    if (left_is_vector) sizes.insert(sizes.begin(), 1);
    result[0] = grads.matmul(columns);
    if (!sizes.empty()) result[0] = result[0].sum_to_size_symint(sizes).reshape_symint(factors.left_sizes);
  }
  if (wanted[1]) {
    // One matrix for a whole batch: its gradient is contracted over the batch at once.
    const at::Tensor of_columns =
        is_matrix ? weight_grad(rows, grads) : rows.mT().matmul(grads).sum_to_size_symint(factors.right_sizes);
    result[1] = of_columns.reshape_symint(factors.right_sizes);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor> matmul_backward(const at::Tensor& grad, const at::Tensor& left,
                                                   const at::Tensor& right, std::array<bool, 2> mask) {
  if (!grad.defined()) return {};
  const Factors factors{left, right, c10::SymDimVector(left.sym_sizes()), c10::SymDimVector(right.sym_sizes())};
  auto result = matmul_gradients(grad, factors, {mask[0], mask[1]});
  return {std::move(result[0]), std::move(result[1])};
}

/// Complex products go by torch's composition, whose parts have torch's derivatives.
at::Tensor differentiable_matmul(const at::Tensor& left, const at::Tensor& right) {
  const bool is_complex = left.is_complex() || right.is_complex();
  if (is_complex || has_tangent(left) || has_tangent(right)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::matmul", "");
    torch::jit::Stack stack{left, right};
    op.callBoxedForDispatchKey(is_complex ? c10::DispatchKey::CompositeImplicitAutograd : c10::DispatchKey::Autograd,
                               stack);
    return stack[0].toTensor();
  }
  return with_history(below_derivatives([&] { return at::matmul(left, right); }), "MatmulBackward0", &matmul_gradients,
                      left, right, {}, /*needs_left_sizes=*/left.dim() == 1 || right.dim() > 2);
}

variable_list linear_gradients(const at::Tensor& grad, const Factors& factors, const Wanted& wanted) {
  const bool is_vector = factors.right_sizes.size() == 1;
  at::Tensor grads = is_vector ? grad.unsqueeze(-1) : grad, rows, inputs;
  if (wanted[0]) rows = (is_vector ? factors.right.unsqueeze(0) : factors.right).conj_physical();
  if (wanted[1]) inputs = factors.left.conj_physical();
  if (wanted[0] && wanted[1]) grads = reduced_once(grads, rows, inputs, factors.right, /*is_matrix=*/true);
  variable_list result(3);
  if (wanted[0]) result[0] = grads.matmul(rows);
  if (wanted[1]) result[1] = weight_grad(grads, inputs).reshape_symint(factors.right_sizes);
  if (wanted[2]) {
    const at::Tensor sums = is_vector ? grads.squeeze(-1) : grads;
    Dims batch(grad.dim() - (is_vector ? 0 : 1));
    std::iota(batch.begin(), batch.end(), 0);
    result[2] = batch.empty() ? sums : sums.sum(batch);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& input, const at::Tensor& grad,
                                                               const at::Tensor& weight, std::array<bool, 3> mask) {
  if (!grad.defined()) return {};
  auto result =
      linear_gradients(grad, {input, weight, {}, c10::SymDimVector(weight.sym_sizes())}, {mask[0], mask[1], mask[2]});
  return {std::move(result[0]), std::move(result[1]), std::move(result[2])};
}

/// torch multiplies a flattened copy where the weight's gradient is recorded, and batch by batch, which is slower, where it is not. A piece records
/// none.
at::Tensor linear_of_rows(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes.back() = weight.size(0);
  return at::linear(input.flatten(0, -2), weight, bias).view_symint(sizes);
}

at::Tensor linear_product(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  static const auto of_rows = operator_of<decltype(linear_of_rows)>("shardwise::linear_of_rows");
  const bool is_flattened = weight.requires_grad() && weight.dim() == 2 && input.dim() > 2 && !input.is_contiguous();
  return is_flattened ? of_rows.call(input, weight, bias) : at::linear(input, weight, bias);
}

at::Tensor differentiable_linear(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& given_bias) {
  const at::Tensor bias = given_bias.value_or(at::Tensor());
  if (has_tangent(input) || has_tangent(weight) || has_tangent(bias)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
    torch::jit::Stack stack{input, weight, given_bias};
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);
    return stack[0].toTensor();
  }
  return with_history(below_derivatives([&] { return linear_product(input, weight, given_bias); }), "LinearBackward0",
                      &linear_gradients, input, weight, bias);
}

/// aten::dot has no meta kernel, so aten::matmul and aten::dot call an operator of our own.
at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&)>("shardwise::matmul");
  return op.call(left, right);
}

at::Tensor inner_product(const at::Tensor& left, const at::Tensor& right) {
  TORCH_CHECK(left.dim() == 1 && right.dim() == 1, "1D tensors expected, but got ", left.dim(), "D and ", right.dim(),
              "D tensors");
  return product(left, right);
}

at::Tensor conjugate_inner_product(const at::Tensor& left, const at::Tensor& right) {
  return inner_product(left.conj_physical(), right);
}

at::Tensor compute(const at::Tensor& left, const at::Tensor& right) { return at::matmul(left, right); }

at::Tensor compute_shape(const at::Tensor& left, const at::Tensor& right) {
  const bool is_dot = left.dim() == 1 && right.dim() == 1;
  return is_dot ? left.unsqueeze(0).mv(right).squeeze(0) : at::matmul(left, right);
}

/// torch's addmv returns the size of a one-element bias where the matrix has no elements, not the number of rows.
at::Tensor matrix_by_vector(const at::Tensor& bias, const at::Tensor& matrix, const at::Tensor& vector,
                            const at::Scalar& beta, const at::Scalar& alpha) {
  return at::addmv(bias.expand({matrix.size(0)}), matrix, vector, beta, alpha);
}

/// A factor per dim of the three expanded operands; summed dims are missing in the result.
void describe_trilinear(const OpCall& call, Signature& signature) {
  Dims sizes(call.operands[0].sizes.size() + call.arg("expand1").toListRef().size(), 1);
  const auto dims_in = [&](const char* arg) {
    std::vector<bool> has(sizes.size());
    for (int64_t dim : call.arg(arg).toIntVector())
      has.at(dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim) = true;
    return has;
  };
  const auto summed = dims_in("sumdim");
  std::vector<std::vector<size_t>> places;
  for (const char* arg : {"expand1", "expand2", "expand3"}) {
    const auto lacks = dims_in(arg);
    auto& of_operand = places.emplace_back();
    for (size_t dim = 0; dim < sizes.size(); ++dim)
      if (!lacks[dim]) of_operand.push_back(dim);
  }
  for (size_t i = 0; i < 3; ++i)
    for (size_t dim = 0; dim < places[i].size(); ++dim)
      if (const int64_t size = call.operands[i].sizes.at(dim); size != 1) sizes[places[i][dim]] = size;
  for (int64_t size : sizes) signature.add_factor(size);
  for (size_t i = 0; i < 3; ++i) {
    Axes& axes = signature.inputs.emplace_back();
    for (size_t dim = 0; dim < places[i].size(); ++dim)
      axes.push_back(call.operands[i].sizes[dim] == sizes[places[i][dim]] ? Axis{static_cast<int>(places[i][dim])}
                                                                          : Axis{});
  }
  Axes& output = signature.outputs.emplace_back();
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (!summed[dim]) output.push_back({static_cast<int>(dim)});
}

}  // namespace

void register_matmul(RuleTable& table) {
  define_operator("addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
                  {&matrix_by_vector});
  define_operator("matmul(Tensor left, Tensor right) -> Tensor",
                  {.compute = &compute, .shape = &compute_shape, .traced = &compute});
  define_operator("linear_of_rows(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
                  {.compute = &linear_of_rows, .traced = &linear_of_rows});
  define_operator(
      "linear_weight_grad(Tensor grad, Tensor input) -> Tensor",
      {.compute = &compute_weight_grad, .derivative = &differentiable_weight_grad, .traced = &compute_weight_grad});
  table.add({"aten::linear", "shardwise::linear_of_rows"},
            Rule("…k,nk,n->…n {k: sum}", describe_linear).multilinear().sampled());
  table.add("shardwise::linear_weight_grad", Rule("…n,…k->nk").multilinear());
  table.add("aten::mm", Rule("mk,kn->mn").multilinear());
  table.add("aten::bmm", Rule("bmk,bkn->bmn").multilinear());
  table.add("aten::mv", Rule("mk,k->m").multilinear());
  table.add({"aten::addmm", "aten::addmm_"}, plus_bias("mk,kn->mn"));
  table.add({"aten::baddbmm", "aten::baddbmm_"}, plus_bias("bmk,bkn->bmn"));
  table.add("aten::addbmm", plus_bias("bmk,bkn->mn"));
  aten_kernels().impl("addbmm_", &add_products);
  table.add({"aten::addr", "aten::addr_"}, plus_bias("m,n->mn"));
  table.add("aten::addmv", plus_bias("mk,k->m").computed_by("shardwise::addmv"));
  table.add("aten::addmv_", plus_bias("mk,k->m"));
  table.add("aten::_trilinear", Rule("trilinear", describe_trilinear).multilinear().sampled());
  table.add("aten::linalg_cross", pointwise().multilinear().whole("dim").sampled());
  table.add("shardwise::matmul", Rule("…mk,…kn->…mn {k: sum}", describe_matmul).multilinear().sampled());
  table.keep_symbols({"aten::bmm", "aten::linear", "aten::matmul", "shardwise::linear_of_rows",
                      "shardwise::linear_weight_grad", "shardwise::matmul"});
  aten_kernels().impl("matmul", &product);
  aten_autograd_kernels().impl("matmul", torch::CppFunction(&differentiable_matmul));
  aten_kernels().impl("dot", &inner_product);
  aten_kernels().impl("vdot", &conjugate_inner_product);
  add_composition("matmul_backward", &matmul_backward);
  aten_autograd_kernels().impl("linear", torch::CppFunction(&differentiable_linear));
  add_composition("linear_backward", &linear_backward);
}

}  // namespace shardwise
