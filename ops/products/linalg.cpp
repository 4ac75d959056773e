// ops/products/linalg.cpp: operators on matrices: batch dims may be sharded, matrix dims are whole.
#include "ops/families.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace shardwise {
namespace {

/// The number of trailing dims of each operand and each output that form a matrix (2), a vector (1) or a number (0). Leading dims are batch dims,
/// which broadcast.
struct Cores {
  std::vector<int> operands, outputs;  // the last entry holds for all that follow
};

Rule batches_of(const char* text, const std::function<Cores(const OpCall&)>& cores_of) {
  auto describe = [cores_of](const OpCall& call, Signature& signature) {
    const Cores cores = cores_of(call);
    const auto n_core = [](const std::vector<int>& listed, size_t i) {
      return static_cast<size_t>(listed[std::min(i, listed.size() - 1)]);
    };
    Dims batch;  // aligned to the right
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const c10::IntArrayRef sizes = call.operands[i].sizes;
      const size_t n_batch = sizes.size() - std::min(sizes.size(), n_core(cores.operands, i));
      if (n_batch > batch.size()) batch.insert(batch.begin(), n_batch - batch.size(), 1);
      for (size_t dim = 0; dim < n_batch; ++dim)
        if (sizes[dim] != 1) batch[batch.size() - n_batch + dim] = sizes[dim];
    }
    for (int64_t size : batch) signature.add_factor(size);
    auto axes_of = [&](c10::IntArrayRef sizes, size_t n_core_dims) {
      Axes axes(sizes.size());
      const size_t n_batch = sizes.size() - std::min(sizes.size(), n_core_dims);
      for (size_t dim = 0; dim < sizes.size(); ++dim) {
        if (dim >= n_batch) {
          axes[dim].factor = signature.add_factor(sizes[dim]);
          signature.factors.back().is_whole = true;
        } else if (const size_t at = batch.size() - n_batch + dim; sizes[dim] == batch[at]) {
          axes[dim].factor = static_cast<int>(at);
        }
      }
      return axes;
    };
    for (size_t i = 0; i < call.operands.size(); ++i)
      signature.inputs.push_back(axes_of(call.operands[i].sizes, n_core(cores.operands, i)));
    for (size_t i = 0; i < call.outputs.size(); ++i)
      signature.outputs.push_back(axes_of(call.outputs[i].sizes, n_core(cores.outputs, i)));
    for (size_t factor = 0; factor < batch.size(); ++factor) {
      const auto lacks_it = [&](const Axes& axes) {
        return std::ranges::none_of(axes, [&](const Axis& axis) { return axis.factor == static_cast<int>(factor); });
      };
      // An output that was not requested is empty. An output without the batch dim is not a sum over the batch, so the batch dim is gathered.
      for (size_t i = 0; i < call.outputs.size(); ++i)
        if (c10::multiply_integers(call.outputs[i].sizes) > 0 && lacks_it(signature.outputs[i]))
          signature.factors[factor].is_whole = true;
    }
  };
  return {text, describe};
}

Rule batches_of(const char* text, const Cores& cores) {
  return batches_of(text, [cores](const OpCall&) { return cores; });
}

/// "*ij,*jk" or, with vectors on the right, "*ij,*j": torch infers a batch of vectors from the sizes.
Cores of_solve(const OpCall& call) {
  const c10::IntArrayRef left = call.operands[0].sizes, right = call.operands[1].sizes;
  const bool is_vector =
      right.size() == 1 || (right.size() + 1 == left.size() && right == left.slice(0, left.size() - 1));
  const int n_right = is_vector ? 1 : 2;
  return {{2, n_right}, {n_right, 2, 1, 0}};
}

}  // namespace

void register_linalg(RuleTable& table) {
  const Rule of_matrices = batches_of("*ij->*ij", Cores{{2}, {2}});
  table.add({"aten::cholesky", "aten::cholesky_inverse", "aten::cholesky_solve", "aten::linalg_matrix_exp",
             "aten::linalg_qr", "aten::linalg_lu", "aten::linalg_solve_triangular", "aten::triangular_solve"},
            of_matrices);
  table.add("aten::linalg_householder_product", batches_of("*ij,*k->*ij", Cores{{2, 1}, {2}}));
  table.add("aten::ormqr", batches_of("*ij,*k,*ij->*ij", Cores{{2, 1, 2}, {2}}));
  table.add({"aten::linalg_inv_ex", "aten::linalg_cholesky_ex"}, batches_of("*ij->*ij,*", Cores{{2}, {2, 0}}));
  table.add("aten::_linalg_det", batches_of("*ij->*,*ij,*k", Cores{{2}, {0, 2, 1}}));
  table.add("aten::_linalg_slogdet", batches_of("*ij->*,*,*ij,*k", Cores{{2}, {0, 0, 2, 1}}));
  table.add("aten::_linalg_eigh", batches_of("*ij->*k,*ij", Cores{{2}, {1, 2}}));
  table.add("aten::linalg_eig", batches_of("*ij->*k,*ij", Cores{{2}, {1, 2}}));
  table.add("aten::_linalg_svd", batches_of("*ij->*ij,*k,*ij", Cores{{2}, {2, 1, 2}}));
  table.add({"aten::linalg_lu_factor_ex", "aten::linalg_ldl_factor_ex"},
            batches_of("*ij->*ij,*k,*", Cores{{2}, {2, 1, 0}}));
  table.add({"aten::linalg_lu_solve", "aten::linalg_ldl_solve"}, batches_of("*ij,*k,*ij->*ij", Cores{{2, 1, 2}, {2}}));
  table.add("aten::lu_unpack", batches_of("*ij,*k->*ij,*ij,*ij", Cores{{2, 1}, {2}}));
  table.add("aten::_linalg_solve_ex", batches_of("*ij,*jk->*ik,*ij,*i,*", of_solve));
  table.add("aten::_linalg_check_errors", Rule::gathered());
}

}  // namespace shardwise
