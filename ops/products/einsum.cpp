// ops/products/einsum.cpp: einsum of two operands as one matmul, whose batch dims are the dims that the first operand alone has.
//
//   "bsd,de->bse"    x @ w        torch's own einsum would merge b and s into one dim. If s is sharded, or its size is a symbol of a graph, the merged
//   "bshd,hde->bse"               dim can be neither: operands move, or a graph serves one length.
//
// Other equations have torch's composition, also those where the first operand has one such dim, or whose result begins with a dim of the second (but
// for dims of one element): torch then computes the transposed product.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/Functions.h>
#include <ATen/ops/einsum_native.h>

#include <algorithm>
#include <cctype>
#include <numeric>

namespace shardwise {
namespace {

using Labels = std::string;

bool has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

/// The labels of two operands and of the result. Both operands have the dims of `summed`, and no others in common.
struct Equation {
  Labels first, second, result, of_first, summed, of_second;

  /// Nullopt if the text is not of this form.
  static std::optional<Equation> of(std::string_view text) {
    Labels all(text);
    std::erase(all, ' ');
    const size_t comma = all.find(','), arrow = all.find("->");
    if (comma == Labels::npos || text.find("->") == text.npos || comma > arrow) return std::nullopt;
    Equation found{all.substr(0, comma), all.substr(comma + 1, arrow - comma - 1), all.substr(arrow + 2)};
    for (const Labels* each : {&found.first, &found.second, &found.result})
      for (const char label : *each)
        if (!std::isalpha(static_cast<unsigned char>(label)) || std::ranges::count(*each, label) > 1)
          return std::nullopt;
    for (const char label : found.result) {
      if (has(found.first, label) == has(found.second, label)) return std::nullopt;
      (has(found.first, label) ? found.of_first : found.of_second).push_back(label);
    }
    for (const char label : found.first)
      if (has(found.second, label)) found.summed.push_back(label);
    std::ranges::sort(found.summed);
    const size_t n_first = found.of_first.size() + found.summed.size();
    const size_t n_second = found.of_second.size() + found.summed.size();
    if (n_first != found.first.size() || n_second != found.second.size()) return std::nullopt;
    const bool is_product = found.of_first.size() > 1 && !found.summed.empty() && !found.of_second.empty();
    return is_product ? std::optional(found) : std::nullopt;
  }

  /// True if operands of these layouts fit. torch repeats summed dims of one element, or multiplies without a sum, and has the errors.
  bool fits(const Spec& left, const Spec& right) const {
    if (left.mesh() != right.mesh() || left.sizes().size() != first.size() || right.sizes().size() != second.size())
      return false;
    const auto left_size = [&](char label) { return left.sizes()[first.find(label)]; };
    const auto right_size = [&](char label) { return right.sizes()[second.find(label)]; };
    const auto lead = std::ranges::find_if(
        result, [&](char label) { return (has(first, label) ? left_size(label) : right_size(label)) != 1; });
    return (lead == result.end() || has(first, *lead)) && std::ranges::all_of(summed, [&](char label) {
             return left_size(label) != 1 && left_size(label) == right_size(label);
           });
  }
};

/// `tensor`, whose dims have the labels `from`, with its dims in the order of `to`.
at::Tensor permuted(const at::Tensor& tensor, const Labels& from, const Labels& to) {
  std::vector<int64_t> dims;
  for (const char label : to) dims.push_back(static_cast<int64_t>(from.find(label)));
  return std::ranges::is_sorted(dims) ? tensor : tensor.permute(dims);
}

at::Tensor merged(const at::Tensor& tensor, int64_t begin, size_t n) {
  return n == 1 ? tensor : tensor.flatten(begin, begin + static_cast<int64_t>(n) - 1);
}

at::Tensor einsum(std::string_view text, at::TensorList operands, at::OptionalIntArrayRef path) {
  const auto equation = operands.size() == 2 ? Equation::of(text) : std::nullopt;
  if (!equation || !is_dtensor(operands[0]) || !is_dtensor(operands[1]) ||
      !equation->fits(*spec_of(operands[0]), *spec_of(operands[1])))
    return at::native::einsum(text, operands, path);
  const auto& [first, second, result, of_first, summed, of_second] = *equation;
  const at::Tensor right = permuted(operands[1], second, summed + of_second);
  const std::vector<c10::SymInt> columns = right.sym_sizes().slice(summed.size()).vec();
  at::Tensor product = at::matmul(
      merged(permuted(operands[0], first, of_first + summed), static_cast<int64_t>(of_first.size()), summed.size()),
      merged(merged(right, static_cast<int64_t>(summed.size()), of_second.size()), 0, summed.size()));
  if (columns.size() > 1) product = product.unflatten_symint(-1, columns);
  return permuted(product, of_first + of_second, result);
}

}  // namespace

void register_einsum(RuleTable& /*table*/) { add_composition("einsum", &einsum); }

}  // namespace shardwise
