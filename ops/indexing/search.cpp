// ops/indexing/search.cpp: searchsorted, bucketize, isin, histc, unique, one_hot and count_nonzero.
#include "ops/families.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"
#include "text/check.h"

#include <ATen/ops/one_hot.h>

namespace shardwise {
namespace {

/// With 1-D boundaries all dims of the values may be sharded; with rows of boundaries, the common leading dims, and
/// values along the last dim. The boundaries of a row are whole.
void describe_search(const OpCall& call, Signature& signature) {
  const int values = call.operand_at("self"), boundaries = 1 - values;
  const c10::IntArrayRef among = call.operands[boundaries].sizes, of_values = call.operands[values].sizes;
  const bool is_by_row = among.size() > 1;
  const bool fits = !is_by_row || (among.size() == of_values.size() &&
                                   among.slice(0, among.size() - 1) == of_values.slice(0, of_values.size() - 1));
  const Axes found = signature.add_factors(of_values, !fits);
  Axes sorted = found;
  if (is_by_row && fits) {
    sorted.back() = {signature.add_factor(among.back())};
    signature.factors.back().is_whole = true;
  } else {
    sorted = signature.add_factors(among, true);
  }
  for (size_t i = 0; i < call.operands.size(); ++i)
    signature.inputs.push_back(static_cast<int>(i) == values ? found
                                                             : sorted);  // a sorter is laid out like the boundaries
  signature.outputs = {found};
}

/// The test elements are whole.
void describe_isin(const OpCall& call, Signature& signature) {
  const Axes elements = signature.add_factors(call.operands[0].sizes);
  signature.inputs = {elements, signature.add_factors(call.operands[1].sizes, true)};
  signature.outputs = {elements};
}

/// Counts per shard add up, unless the bounds are equal: equal bounds mean the global extremes, which a shard does not know.
void describe_histc(const OpCall& call, Signature& signature) {
  const bool takes_bounds = call.arg("min").toScalar().toDouble() == call.arg("max").toScalar().toDouble();
  signature.inputs = {signature.add_factors(call.operands[0].sizes, takes_bounds)};
  signature.outputs = {{Axis{}}};
}

at::Tensor compute_one_hot(const at::Tensor& self, int64_t n_classes) { return at::one_hot(self, n_classes); }

/// torch's one_hot of all values would scatter into plain zeros, so each rank calls it for its own.
at::Tensor one_hot(const at::Tensor& self, int64_t n_classes) {
  static const auto op = operator_of<decltype(compute_one_hot)>("shardwise::one_hot");
  TORCH_CHECK(self.scalar_type() == at::kLong,
              "[aten::one_hot] one_hot is only applicable to index tensor of type LongTensor.");
  TORCH_CHECK(self.numel() > 0 || n_classes > 0,
              "[aten::one_hot] Can not infer total number of classes from empty tensor.");
  const at::Tensor classes = reduced(self);
  const auto check = [=](int64_t lowest, int64_t highest) {
    TORCH_CHECK(lowest >= 0, "[aten::one_hot] Class values must be non-negative.");
    SW_CHECK(n_classes < 0 || highest < n_classes,
             "[aten::one_hot] Class values must be smaller than num_classes: {} is not smaller than {}.", highest,
             n_classes);
  };
  const auto words = [&] { return fmt::format("classes below {}", n_classes); };
  if (n_classes >= 0) return op.call(checked_range(classes, words, check), n_classes);
  check_not_traced("one_hot without num_classes");
  const auto range = range_of(classes);
  if (range) check(range->first, range->second);
  return op.call(classes, (range ? range->second : classes.max().item<int64_t>()) + 1);
}

}  // namespace

void register_search(RuleTable& table) {
  table.add("aten::searchsorted.Tensor", Rule("searchsorted", describe_search).sampled());
  table.add("aten::bucketize.Tensor", Rule("bucketize", describe_search).sampled());
  table.add("aten::isin.Tensor_Tensor", Rule("isin", describe_isin).sampled());
  table.add("aten::isin.Tensor_Scalar", pointwise());
  table.add("aten::histc", Rule("histc", describe_histc).sampled().by_numbers());
  table.add({"aten::searchsorted.Scalar", "aten::isin.Scalar_Tensor", "aten::bincount", "aten::nonzero_static",
             "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
             "aten::unique_dim_consecutive", "aten::histogram.bins_tensor", "aten::histogram.bin_ct"},
            Rule::gathered());
  add_torch_compositions({"count_nonzero"});
  define_operator("one_hot(Tensor self, int n_classes) -> Tensor",
                  {.compute = &compute_one_hot, .traced = &compute_one_hot});
  table.add("shardwise::one_hot", Rule("…->…_"));
  add_composition("one_hot", &one_hot);
}

}  // namespace shardwise
