// ops/reductions/scans.cpp: running sums, products and extremes. Along a sharded dim each rank scans its shard, gathers the last slice of every
// shard, and combines the slices before its own shard with its scan.
#include "ops/families.h"
#include "ops/support/derivative.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// Gathers the last slices (backwards: the first) of all shards. The dim has one entry per shard.
Shards edges_of_all(const DimPieces& along, const Shards& scanned, bool is_backward, at::ScalarType dtype) {
  Shards edges;
  for (const at::Tensor& piece : scanned) {
    Dims sizes(piece.sizes());
    sizes[along.dim] = 1;
    const int64_t length = piece.size(along.dim);
    edges.push_back(length == 0 ? at::full(sizes, 0, piece.options())
                                : piece.narrow(along.dim, is_backward ? 0 : length - 1, 1).contiguous());
  }
  const std::vector<int64_t> one_each(along.intervals.size(), 1);
  const at::Tensor sharded =
      along.wrapped(edges, static_cast<int64_t>(one_each.size()), along.with_lengths(one_each), dtype);
  return maybe_dtensor(moved_to(sharded, along.unsharded()))->shards();
}

/// The non-empty shards before this rank's shard (backwards: after it).
std::vector<int64_t> pieces_before(const DimPieces& along, bool is_backward) {
  std::vector<int64_t> result;
  for (size_t i = is_backward ? along.own + 1 : 0; i < (is_backward ? along.intervals.size() : along.own); ++i)
    if (along.intervals[i].length() > 0) result.push_back(static_cast<int64_t>(i));
  return result;
}

/// Results have the dtype of the piece: torch's operators would widen integers by default.
using OnPiece = at::Tensor (*)(const at::Tensor& piece, int64_t dim);
/// `before`: the edges of the shards before, along the dim.
using Combine = at::Tensor (*)(const at::Tensor& scanned, const at::Tensor& before, int64_t dim);

struct Scan {
  OnPiece on_piece;
  Combine combine;
  bool is_linear = false;    // Partial sums pass
  bool is_backward = false;  // from the end
};

at::Tensor run(const Scan& scan, const at::Tensor& self, int64_t dim) {
  const DimPieces along = pieces_along(self, dim, scan.is_linear);
  Shards pieces;
  for (const at::Tensor& piece : maybe_dtensor(along.tensor)->shards())
    pieces.push_back(scan.on_piece(piece, along.dim));
  if (along.has_several()) {
    const Shards edges = edges_of_all(along, pieces, scan.is_backward, self.scalar_type());
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::vector<at::Tensor> before = c10::fmap(pieces_before(along, scan.is_backward),
                                                 [&](int64_t piece) { return edges[i].narrow(along.dim, piece, 1); });
      if (!before.empty() && pieces[i].numel() > 0)
        pieces[i] = scan.combine(pieces[i], at::cat(before, along.dim), along.dim);
    }
  }
  return along.wrapped(pieces, self.dim() == 0 ? 1 : spec_of(self)->sizes()[along.dim],
                       spec_of(along.tensor)->placements().vec(), self.scalar_type());
}

at::Tensor add_sum(const at::Tensor& scanned, const at::Tensor& before, int64_t dim) {
  return scanned.add(before.sum(dim, /*keepdim=*/true, before.scalar_type()));
}

at::Tensor sum_up(const at::Tensor& piece, int64_t dim) { return at::cumsum(piece, dim, piece.scalar_type()); }

constexpr Scan kSum{&sum_up, &add_sum, /*is_linear=*/true};
constexpr Scan kSumFromEnd{[](const at::Tensor& piece, int64_t dim) {
                             return piece.dim() == 0 ? piece.clone() : sum_up(piece.flip(dim), dim).flip(dim);
                           },
                           &add_sum, /*is_linear=*/true, /*is_backward=*/true};
constexpr Scan kProduct{
    [](const at::Tensor& piece, int64_t dim) { return at::cumprod(piece, dim, piece.scalar_type()); },
    [](const at::Tensor& scanned, const at::Tensor& before, int64_t dim) {
      return scanned.mul(before.prod(dim, /*keepdim=*/true, before.scalar_type()));
    }};
constexpr Scan kLogSumExp{[](const at::Tensor& piece, int64_t dim) { return at::logcumsumexp(piece, dim); },
                          [](const at::Tensor& scanned, const at::Tensor& before, int64_t dim) {
                            return at::logaddexp(scanned, at::logsumexp(before, dim, /*keepdim=*/true));
                          }};

/// Casts as torch does for sums: integers and bools to int64, or to the given dtype.
at::Tensor as_scanned(const char* op, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const bool is_integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const at::ScalarType to = dtype.value_or(is_integral ? at::kLong : self.scalar_type());
  // torch's kernels say so where there are elements, which not every rank has.
  SW_CHECK_NOT_IMPLEMENTED(to != at::kBool, "[{}] is not implemented for bools. Pass an integer or floating dtype=.",
                           op);
  return self.to(to);
}

at::Tensor running_sum(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return run(kSum, as_scanned("aten::cumsum", self, dtype), dim);
}

at::Tensor running_product(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return run(kProduct, as_scanned("aten::cumprod", self, dtype), dim);
}

/// The dtype of an in-place scan: the tensor's own.
at::ScalarType written_dtype(const char* op, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const at::ScalarType own = self.scalar_type();
  SW_CHECK(dtype.value_or(own) == own, "[{}] dtype={} does not fit the tensor, which is {}. Leave it out.", op,
           c10::toString(*dtype), c10::toString(own));
  return own;
}

at::Tensor& running_sum_(at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return self.copy_(running_sum(self, dim, written_dtype("aten::cumsum_", self, dtype)));
}

at::Tensor& running_product_(at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return self.copy_(running_product(self, dim, written_dtype("aten::cumprod_", self, dtype)));
}

at::Tensor running_log_sum(const at::Tensor& self, int64_t dim) { return run(kLogSumExp, self, dim); }

/// The derivative of a running sum is the running sum from the end. torch's formula would flip the tensor instead.
at::Tensor differentiable_sum(const at::Tensor& self, int64_t dim, bool is_backward) {
  const at::Tensor result = below_derivatives([&] { return run(is_backward ? kSumFromEnd : kSum, self, dim); });
  return with_derivative(self, result, {}, "CumsumBackward", [=](const at::Tensor& grad, const variable_list&) {
    return differentiable_sum(grad, dim, !is_backward);
  });
}

/// Forward-mode derivatives use torch's formula.
at::Tensor differentiable_cumsum(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim,
                                 std::optional<at::ScalarType> dtype) {
  if (!has_tangent(self) && !maybe_dtensor(self)->holds_subclass())
    return differentiable_sum(as_scanned("aten::cumsum", self, dtype), dim, /*is_backward=*/false);
  static const auto op =
      operator_of<at::Tensor(const at::Tensor&, int64_t, std::optional<at::ScalarType>)>("aten::cumsum");
  return op.redispatch(formula_keys(keys), self, dim, dtype);
}

/// The products without each factor, times the gradients from that factor on, as n x n products: twice differentiable.
at::Tensor product_grad_by_factor(const at::Tensor& grad, const at::Tensor& input, int64_t dim) {
  const at::Tensor factors = input.movedim(dim, -1).unsqueeze(-2);
  Dims square(factors.sizes());
  square[square.size() - 2] = square.back();
  const at::Tensor all = factors.expand(square);
  const at::Tensor others = all.tril(-1) + all.triu(1) + at::ones_like(all).tril().triu();
  return others.cumprod(-1).mul(grad.movedim(dim, -1).unsqueeze(-2)).triu().sum(-1).movedim(-1, dim);
}

/// torch's formula makes plain tensors where there are zeros. After the first zero along `dim` the gradient is 0; at
/// the first zero it comes from the products without that factor.
at::Tensor cumprod_backward(const at::Tensor& grad, const at::Tensor& input, int64_t dim, const at::Tensor& output) {
  if (input.dim() == 0 || input.sym_numel() == 0) return grad;
  const at::Tensor factors = at::conj(input);
  if (c10::GradMode::is_enabled()) return product_grad_by_factor(grad, factors, dim);
  const at::Tensor is_zero = factors.eq(0);
  const at::Tensor is_first = is_zero.logical_and(is_zero.cumsum(dim).eq(1));
  const at::Tensor without_first = at::where(is_first, 1, factors).cumprod(dim).to(factors.scalar_type());
  const auto sums = [&](const at::Tensor& products) { return differentiable_sum(grad.mul(products), dim, true); };
  const at::Tensor elsewhere = sums(at::conj(output)).div(at::where(is_zero, 1, factors));
  return at::where(is_zero, at::where(is_first, sums(without_first), 0), elsewhere).to(grad.scalar_type());
}

/// Running extremes and their indices: the last of equal ones; a NaN stays, at its last index.
struct Extremes {
  at::Tensor values, indices;

  /// These extremes, replaced by `next` where it is at least as extreme.
  Extremes followed_by(const Extremes& next, bool is_max) const {
    const at::Tensor is_extreme = is_max ? next.values.ge(values) : next.values.le(values);
    const at::Tensor takes = next.values.isnan().logical_or_(is_extreme.logical_and_(values.isnan().logical_not_()));
    return {at::where(takes, next.values, values), at::where(takes, next.indices, indices)};
  }
};

template <bool is_max>
std::tuple<at::Tensor, at::Tensor> running_extremes(const at::Tensor& self, int64_t dim) {
  // torch's kernels say so where there are elements, which not every rank has.
  SW_CHECK_NOT_IMPLEMENTED(!self.is_complex() && !at::isFloat8Type(self.scalar_type()),
                           "[{}] is not implemented for {}. Convert the tensor first.",
                           is_max ? "aten::cummax" : "aten::cummin", c10::toString(self.scalar_type()));
  const DimPieces along = pieces_along(self, dim);
  const int64_t first = along.intervals[along.own].begin;
  Shards values, indices;
  for (const at::Tensor& piece : maybe_dtensor(along.tensor)->shards()) {
    auto [running, at_index] = is_max ? at::cummax(piece, along.dim) : at::cummin(piece, along.dim);
    values.push_back(running);
    indices.push_back(at_index.add_(first));
  }
  if (along.has_several()) {
    const Shards edges = edges_of_all(along, values, false, self.scalar_type());
    const Shards places = edges_of_all(along, indices, false, at::kLong);
    const std::vector<int64_t> earlier = pieces_before(along, false);
    for (size_t i = 0; i < values.size() && !earlier.empty(); ++i) {
      const auto edge = [&](int64_t piece) {
        return Extremes{edges[i].narrow(along.dim, piece, 1), places[i].narrow(along.dim, piece, 1)};
      };
      Extremes before = edge(earlier[0]);
      for (size_t k = 1; k < earlier.size(); ++k) before = before.followed_by(edge(earlier[k]), is_max);
      const Extremes all = before.followed_by({values[i], indices[i]}, is_max);
      values[i] = all.values;
      indices[i] = all.indices;
    }
  }
  const int64_t length = self.dim() == 0 ? 1 : spec_of(self)->sizes()[along.dim];
  const Placements placements = spec_of(along.tensor)->placements().vec();
  return {along.wrapped(values, length, placements, self.scalar_type()),
          along.wrapped(indices, length, placements, at::kLong)};
}

}  // namespace

void register_scans(RuleTable& table) {
  const Rule along_whole = pointwise().whole("dim").sampled();  // for tensor classes; the kernels take any layout
  table.add("aten::cumsum", along_whole.linear());
  table.add({"aten::cumprod", "aten::logcumsumexp", "aten::cummax", "aten::cummin"}, along_whole);
  table.keep_symbols({"aten::cumsum", "aten::cumprod", "aten::logcumsumexp", "aten::cummax", "aten::cummin"});
  auto& kernels = aten_kernels();
  kernels.impl_in_memory("cumsum", &running_sum);
  kernels.impl("cumsum_", &running_sum_);
  kernels.impl_in_memory("cumprod", &running_product);
  kernels.impl("cumprod_", &running_product_);
  kernels.impl_in_memory("logcumsumexp", &running_log_sum);
  kernels.impl_in_memory("cummax", &running_extremes<true>);
  kernels.impl_in_memory("cummin", &running_extremes<false>);
  aten_autograd_kernels().impl("cumsum", &differentiable_cumsum);
  add_composition("cumprod_backward", &cumprod_backward);
}

}  // namespace shardwise
