// ops/shapes/permute.cpp: permuted dims and new dims of extent 1. Every placement passes; nothing moves.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/rules/propagate.h"

#include <numeric>

namespace shardwise {
namespace {

/// Output dim i is input dim `order[i]`; kNew is a dim of extent 1.
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

void describe(const Dims& order, const OpCall& call, Signature& signature) {
  const Axes input = signature.add_factors(call.operands[0].sizes);
  Axes output;
  for (int64_t dim : order) output.push_back(dim == kNew ? Axis{} : input[dim]);
  signature.set({input}, {output});
}

Placement reordered(const Placement& enumerable, const Dims& order) {
  std::vector<ShardMetadata> pieces = enumerable.pieces().vec();
  for (ShardMetadata& piece : pieces) {
    const Box box = piece.box();
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
    if (!enumerable) return propagate(call, of_factors.signature(call));
    return placed(call, spec, {reordered(*enumerable, order_of(call))});
  };
  return Rule::placed(of_factors.text(), place).takes_strided();
}

// The in-place forms turn the tensor itself into the view.

at::Tensor& become(at::Tensor& self, ViewReplay::Operator change) {
  const at::Tensor view = change(self);
  const MemoryWrite write = maybe_dtensor(self)->begin_write();  // torch counts it as a write, for aliases too
  maybe_dtensor(self)->shallow_copy_from(view.getIntrusivePtr());
  if (c10::InferenceMode::is_enabled()) ViewReplay::add_change(self, std::move(change));  // else the autograd key does
  return self;
}

at::Tensor& unsqueeze_in_place(at::Tensor& self, int64_t dim) {
  return become(self, [dim](const at::Tensor& x) { return x.unsqueeze(dim); });
}
at::Tensor& squeeze_in_place(at::Tensor& self) {
  return become(self, [](const at::Tensor& x) { return x.squeeze(); });
}
at::Tensor& squeeze_dim_in_place(at::Tensor& self, int64_t dim) {
  return become(self, [dim](const at::Tensor& x) { return x.squeeze(dim); });
}
at::Tensor& squeeze_dims_in_place(at::Tensor& self, c10::IntArrayRef dims) {
  return become(self, [dims = dims.vec()](const at::Tensor& x) { return x.squeeze(dims); });
}
at::Tensor& t_in_place(at::Tensor& self) {
  return become(self, [](const at::Tensor& x) { return x.t(); });
}
at::Tensor& transpose_in_place(at::Tensor& self, int64_t dim0, int64_t dim1) {
  return become(self, [dim0, dim1](const at::Tensor& x) { return x.transpose(dim0, dim1); });
}

}  // namespace

void register_permutations(RuleTable& table) {
  table.add("aten::permute", reordering("permute", permuted));
  table.add("aten::transpose.int", reordering("transpose", transposed));
  table.add("aten::t", reordering("t", [](const OpCall& call) { return exchanged(call, 0, -1); }));
  table.add("aten::unsqueeze", reordering("unsqueeze", unsqueezed));
  table.keep_symbols({"aten::permute", "aten::transpose.int", "aten::t", "aten::unsqueeze"});
  aten_kernels().impl("unsqueeze_", &unsqueeze_in_place);
  aten_kernels().impl("squeeze_", &squeeze_in_place);
  aten_kernels().impl("squeeze_.dim", &squeeze_dim_in_place);
  aten_kernels().impl("squeeze_.dims", &squeeze_dims_in_place);
  aten_kernels().impl("t_", &t_in_place);
  aten_kernels().impl("transpose_", &transpose_in_place);
}

}  // namespace shardwise
