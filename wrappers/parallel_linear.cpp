// wrappers/parallel_linear.cpp: linear layers whose weight is sharded along its output or its input dim.
#include "text/check.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/plain_parts.h"

#include <ATen/ops/linear.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Places the last dim of a tensor of `sizes` as `weight_dim` of the weight is placed; Replicate if that is not sharded.
Placement placement_of_last_dim(const Placement& of_weight, int64_t weight_dim, c10::IntArrayRef sizes) {
  if (of_weight.divided_dim() == weight_dim) return of_weight.with_dim(static_cast<int64_t>(sizes.size()) - 1);
  if (!of_weight.places_boxes()) return Placement::replicate();
  std::vector<ShardMetadata> pieces;
  for (const ShardMetadata& piece : of_weight.pieces()) {
    pieces.push_back({Dims(sizes.size()), Dims(sizes), piece.rank});
    pieces.back().offsets.back() = piece.offsets[weight_dim];
    pieces.back().sizes.back() = piece.sizes[weight_dim];
  }
  return Placement::enumerable(std::move(pieces));
}

SpecPtr row_major_spec(const MeshPtr& mesh, const Dims& sizes, Placements placements, at::ScalarType dtype) {
  return Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
}

/// True if every rank has pieces of `weight`, split along `dim` alone. The rule of aten::linear handles other layouts, also if some rank has no
/// piece, because that rank would not take part in the backward's messages.
bool goes_by_pieces(const Spec& weight, int64_t dim) {
  if (!weight.layout().enumerated()) return false;
  const auto pieces = weight.layout().pieces();
  return std::ranges::all_of(
             pieces, [&](const ShardMetadata& piece) { return piece.sizes[1 - dim] == weight.sizes()[1 - dim]; }) &&
         std::ranges::all_of(weight.mesh()->grid().ranks, [&](int64_t rank) {
           return std::ranges::any_of(pieces, [&](const ShardMetadata& piece) { return piece.rank == rank; });
         });
}

/// The product with each of this rank's pieces of rows, which are pieces of the output's columns. Pre: the input is replicated.
at::Tensor columns_by_pieces(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias) {
  const Spec& spec = *spec_of(weight);
  Dims sizes(input.sizes());
  sizes.back() = weight.size(0);
  const Placement of_weight = *spec.layout().enumerated();
  const Placement of_columns = placement_of_last_dim(of_weight, 0, sizes);
  std::vector<at::Tensor> outputs;
  const at::Tensor own = to_local(input, Placements{Placement::partial()});
  const auto rows = to_pieces(weight);
  std::vector<at::Tensor> biases;
  if (bias) biases = to_pieces(redistribute(*bias, {placement_of_last_dim(of_weight, 0, bias->sizes())}));
  for (size_t i = 0; i < rows.size(); ++i)
    outputs.push_back(at::linear(own, rows[i], bias ? MaybeTensor(biases[i]) : std::nullopt));
  const auto dtype = outputs.empty() ? input.scalar_type() : outputs[0].scalar_type();
  return from_pieces(std::move(outputs), row_major_spec(spec.mesh(), sizes, {of_columns}, dtype));
}

/// The sum over this rank's pieces of columns, one term of the output. Pre: the input is sharded alike.
at::Tensor rows_by_pieces(const at::Tensor& input, const at::Tensor& weight) {
  const Spec& spec = *spec_of(weight);
  Dims sizes(input.sizes());
  sizes.back() = weight.size(0);
  const auto inputs = to_pieces(input), columns = to_pieces(weight);
  std::vector<at::Tensor> term;
  for (size_t i = 0; i < columns.size(); ++i) {
    const at::Tensor product = at::linear(inputs[i], columns[i]);
    if (term.empty())
      term.push_back(product);
    else
      term[0] = term[0] + product;
  }
  const auto dtype = term.empty() ? input.scalar_type() : term[0].scalar_type();
  return from_pieces(std::move(term), row_major_spec(spec.mesh(), sizes, {Placement::partial()}, dtype));
}

void check_linear(const char* op, const at::Tensor& input, const at::Tensor& weight, int64_t mesh_dim, int64_t width) {
  check_mesh(op, input, weight, mesh_dim);
  SW_CHECK_VALUE(weight.dim() == 2 && input.dim() > 0 && (width < 0 || input.size(-1) == width),
                 "[{}] an input of shape [{}] does not go with a weight of shape [{}]. Give [..., in] and [out, in].",
                 op, fmt::join(input.sizes(), ", "), fmt::join(weight.sizes(), ", "));
}

}  // namespace

at::Tensor column_parallel_linear(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                                  const ColumnLinearCall& call) {
  check_linear("column_parallel_linear", input, weight, call.mesh_dim, weight.size(-1));
  const Spec& spec = *spec_of(weight);
  const at::Tensor own = placed_on(replica_of(input, spec.mesh()), call.mesh_dim, Placement::replicate());
  at::Tensor output = goes_by_pieces(spec, 0) ? columns_by_pieces(own, weight, bias) : at::linear(own, weight, bias);
  if (call.gather_output) output = placed_on(output, call.mesh_dim, Placement::replicate());
  return is_dtensor(input) ? output : local_part(output);
}

at::Tensor row_parallel_linear(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                               const RowLinearCall& call) {
  constexpr const char* kOp = "row_parallel_linear";
  const bool is_part = call.input_is_parallel && !is_dtensor(input);
  check_linear(kOp, input, weight, call.mesh_dim, is_part ? -1 : weight.size(-1));
  const Spec& spec = *spec_of(weight);
  Dims sizes(input.sizes());
  sizes.back() = weight.size(1);
  const bool by_pieces = goes_by_pieces(spec, 1);
  const Placement of_weight = by_pieces ? *spec.layout().enumerated() : spec.placements()[call.mesh_dim];
  const Placement of_input = of_weight.places_boxes() && of_weight.strided_dim() < 0 && !by_pieces
                                 ? Placement::shard(static_cast<int64_t>(sizes.size()) - 1)
                                 : placement_of_last_dim(of_weight, 1, sizes);

  at::Tensor own;
  if (is_part) {
    Placements placements(spec.mesh()->ndim());
    placements[call.mesh_dim] = of_input;
    own = from_part(input, row_major_spec(spec.mesh(), sizes, std::move(placements), input.scalar_type()), kOp);
  } else {
    own = placed_on(replica_of(input, spec.mesh()), call.mesh_dim, of_input);
  }
  at::Tensor output = by_pieces ? rows_by_pieces(own, weight) : at::linear(own, weight, bias);
  output = placed_on(output, call.mesh_dim, Placement::replicate());
  if (by_pieces && bias) output = output + *bias;
  return is_dtensor(input) ? output : to_local(output);
}

}  // namespace shardwise
