// ops/shapes/permute.cpp: permuted dims, and dims of extent 1 that are added or dropped. Every placement passes; nothing moves, except that a dropped
// dim is whole.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/rules/propagate.h"

#include <ATen/Operators.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

/// Output dim i is input dim `order[i]`; kNew is a dim of extent 1. Input dims that are not in it have extent 1.
using OrderOf = Dims (*)(const OpCall&);
constexpr int64_t kNew = -1;

int64_t wrapped(int64_t dim, size_t n_dims) { return dim < 0 ? dim + static_cast<int64_t>(n_dims) : dim; }

Dims same_order(const OpCall& call) {
  Dims order(call.operands[0].sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Dims permuted(const OpCall& call) {
  Dims order;
  for (int64_t dim : call.arg("dims").toIntVector()) order.push_back(wrapped(dim, call.operands[0].sizes.size()));
  return order;
}

/// Two dims swapped, if the tensor has two or more.
Dims exchanged(const OpCall& call, int64_t dim0, int64_t dim1) {
  Dims order = same_order(call);
  if (order.size() > 1) std::swap(order[wrapped(dim0, order.size())], order[wrapped(dim1, order.size())]);
  return order;
}

Dims transposed(const OpCall& call) { return exchanged(call, call.arg("dim0").toInt(), call.arg("dim1").toInt()); }

Dims unsqueezed(const OpCall& call) {
  Dims order = same_order(call);
  order.insert(order.begin() + wrapped(call.arg("dim").toInt(), order.size() + 1), kNew);
  return order;
}

/// The dims of extent 1 among those named by the argument of squeeze.dims, not negative.
std::vector<int64_t> dropped_dims(const OpCall& call) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  std::vector<int64_t> dims = call.arg("dim").toIntVector();
  for (int64_t& dim : dims) dim = wrapped(dim, sizes.size());
  std::erase_if(dims, [&](int64_t dim) { return sizes.empty() || sizes[dim] != 1; });
  return dims;
}

Dims squeezed(const OpCall& call) {
  Dims order;
  const std::vector<int64_t> dropped = dropped_dims(call);
  for (int64_t dim : same_order(call))
    if (std::ranges::count(dropped, dim) == 0) order.push_back(dim);
  return order;
}

/// A shard may have extent 1 along a dim that is not dropped.
void name_dropped(const LocalCall& local, std::vector<c10::IValue>& args) {
  std::vector<int64_t> dropped = dropped_dims(local.call);
  if (dropped.size() < local.call.arg("dim").toIntList().size()) args[local.call.op.arg_index("dim")] = dropped;
}

void describe(const Dims& order, const OpCall& call, Signature& signature) {
  Axes input, output;
  for (int64_t size : call.operands[0].sizes) {
    const bool is_dropped = std::ranges::count(order, static_cast<int64_t>(input.size())) == 0;
    input.push_back({signature.add_factor(size, /*is_whole=*/is_dropped)});
  }
  for (int64_t dim : order) output.push_back(dim == kNew ? Axis{} : input[dim]);
  signature.set({input}, {output});
}

/// Nothing if a piece has no elements along a dropped dim: without that dim it would have some.
std::optional<Placement> reordered(const Placement& enumerable, const Dims& order) {
  std::vector<ShardMetadata> pieces = enumerable.pieces().vec();
  for (ShardMetadata& piece : pieces) {
    const Box box = piece.box();
    for (size_t dim = 0; dim < box.sizes.size(); ++dim)
      if (box.sizes[dim] == 0 && std::ranges::count(order, static_cast<int64_t>(dim)) == 0) return std::nullopt;
    piece.offsets.clear();
    piece.sizes.clear();
    for (int64_t dim : order) {
      piece.offsets.push_back(dim == kNew ? 0 : box.offsets[dim]);
      piece.sizes.push_back(dim == kNew ? 1 : box.sizes[dim]);
    }
  }
  return Placement::enumerable(std::move(pieces));
}

Rule reordering(const char* name, OrderOf order_of) {
  const auto of_factors = Rule(name, [order_of](const OpCall& call, Signature& signature) {
                            describe(order_of(call), call, signature);
                          }).linear(Linearity::kPass);
  const auto place = [of_factors, order_of](const OpCall& call) -> std::optional<Propagation> {
    const SpecPtr& spec = call.operands[0].spec;
    const std::optional<Placement> enumerable = spec->layout().enumerated();
    const std::optional<Placement> result = enumerable ? reordered(*enumerable, order_of(call)) : std::nullopt;
    return result ? placed(call, spec, {*result}) : propagate(call, of_factors.signature(call));
  };
  return Rule::placed(of_factors.text(), place).takes_strided();
}

at::Tensor squeeze_dim(const at::Tensor& self, int64_t dim) {
  c10::maybe_wrap_dim(dim, self.dim());
  return self.dim() > 0 && self.size(dim) == 1 ? self.squeeze(c10::IntArrayRef(dim)) : self.alias();
}

at::Tensor squeeze(const at::Tensor& self) {
  Dims dims;
  for (int64_t dim = 0; dim < self.dim(); ++dim)
    if (self.size(dim) == 1) dims.push_back(dim);
  return dims.empty() ? self.alias() : self.squeeze(dims);
}

template <class Arg>
Arg kept(Arg arg) {
  return arg;
}
std::vector<int64_t> kept(c10::IntArrayRef dims) { return dims.vec(); }

/// The kernel of an operator that turns the tensor itself into the view that `Op` gives.
template <class Op, class Schema = typename Op::schema>
struct InPlace;

template <class Op, class... Args>
struct InPlace<Op, at::Tensor(const at::Tensor&, Args...)> {
  static at::Tensor& call(at::Tensor& self, Args... args) {
    become(self, Op::call(self, args...),
           [... args = kept(args)](const at::Tensor& same) { return Op::call(same, args...); });
    return self;
  }
};

}  // namespace

void register_permutations(RuleTable& table) {
  table.add("aten::permute", reordering("permute", permuted));
  table.add("aten::transpose.int", reordering("transpose", transposed));
  table.add("aten::t", reordering("t", [](const OpCall& call) { return exchanged(call, 0, -1); }));
  table.add("aten::unsqueeze", reordering("unsqueeze", unsqueezed));
  table.add("aten::squeeze.dims", reordering("squeeze", squeezed).localized(name_dropped));
  table.keep_symbols({"aten::permute", "aten::transpose.int", "aten::t", "aten::unsqueeze", "aten::squeeze",
                      "aten::squeeze.dim", "aten::squeeze.dims"});
  namespace op = at::_ops;
  AtenKernels& kernels = aten_kernels();
  kernels.impl("squeeze", &squeeze);
  kernels.impl("squeeze.dim", &squeeze_dim);
  kernels.impl("unsqueeze_", &InPlace<op::unsqueeze>::call);
  kernels.impl("squeeze_", &InPlace<op::squeeze>::call);
  kernels.impl("squeeze_.dim", &InPlace<op::squeeze_dim>::call);
  kernels.impl("squeeze_.dims", &InPlace<op::squeeze_dims>::call);
  kernels.impl("t_", &InPlace<op::t>::call);
  kernels.impl("transpose_", &InPlace<op::transpose_int>::call);
}

}  // namespace shardwise
