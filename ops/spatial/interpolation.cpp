// ops/spatial/interpolation.cpp: upsampling, sampling at given points (grid_sampler), and affine grids of such points.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/planes.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <string>

namespace shardwise {
namespace {

/// Forward and backward are linear in their only operand; the backward takes the global sizes as an argument.
void add_upsampling(RuleTable& table, const std::string& op, size_t n) {
  const Rule rule = planes("planes", n).linear();
  table.add("aten::" + op, Rule(rule).sampled());
  table.add("aten::" + op + "_backward", rule.sizes_in("input_size"));
}

/// "nc…" sampled at points "n…p" gives "nc…": planes of the input are whole, points may be sharded.
struct Sampling {
  Axes input, grid, result;

  Sampling(c10::IntArrayRef input_sizes, c10::IntArrayRef grid_sizes, Signature& signature) {
    const Axis batch{signature.add_factor(input_sizes.at(0))}, channel{signature.add_factor(input_sizes.at(1))};
    input = {batch, channel}, grid = {batch}, result = {batch, channel};
    add_whole_axes(input_sizes, input_sizes.size() - 2, signature, input);
    for (size_t dim = 1; dim + 1 < grid_sizes.size(); ++dim) {
      grid.push_back({signature.add_factor(grid_sizes[dim])});
      result.push_back(grid.back());
    }
    add_whole_axes(grid_sizes, 1, signature, grid);
  }
};

void describe_grid_sampler(const OpCall& call, Signature& signature) {
  const Sampling sampling(call.operands[0].sizes, call.operands[1].sizes, signature);
  signature.inputs = {sampling.input, sampling.grid};
  signature.outputs = {sampling.result};
}

void describe_grid_sampler_backward(const OpCall& call, Signature& signature) {
  const Sampling sampling(call.operands[1].sizes, call.operands[2].sizes, signature);
  signature.inputs = {sampling.result, sampling.input, sampling.grid};
  signature.outputs = {sampling.input, sampling.grid};
}

/// One grid per transformation in the batch.
void describe_affine_grid(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  Axes theta{{signature.add_factor(sizes[0])}}, grid = theta;
  add_whole_axes(sizes, sizes.size() - 1, signature, theta);
  grid.resize(call.outputs[0].sizes.size());
  signature.inputs = {theta};
  signature.outputs = {grid};
}

void localize_affine_grid(const LocalCall& local, std::vector<c10::IValue>& args) {
  std::vector<int64_t> size = local.call.arg("size").toIntVector();
  size[0] = local.outputs[0].sizes[0];
  args[local.call.op.arg_index("size")] = std::move(size);
}

/// The homogeneous coordinates of the identity grid, [points, dims + 1], replicated on the mesh of `like`.
at::Tensor identity_points(const Spec& like, c10::IntArrayRef size, bool align_corners,
                           const at::TensorOptions& options) {
  const auto n_dims = static_cast<int64_t>(size.size()) - 2;
  Dims one_image(size);
  one_image[0] = 1;
  const Dims sizes{c10::multiply_integers(size.slice(2)), n_dims + 1};
  const BelowAutograd guard;
  std::vector<at::Tensor> pieces;
  if (like.is_member()) {
    const at::Tensor identity = at::eye(n_dims, n_dims + 1, options).unsqueeze(0);
    const at::Tensor grid = at::affine_grid_generator(identity, one_image, align_corners).view({sizes[0], n_dims});
    pieces.push_back(at::cat({grid, at::ones({sizes[0], 1}, options)}, 1));
  }
  return from_pieces(std::move(pieces),
                     Spec::intern(like.mesh(), sizes, Placements(like.placements().size()), row_major_strides(sizes),
                                  at::typeMetaToScalarType(options.dtype())));
}

/// torch's affine_grid_generator_backward makes plain grids for the whole batch.
at::Tensor affine_grid_backward(const at::Tensor& grad, c10::IntArrayRef size, bool align_corners) {
  const auto options = at::TensorOptions().dtype(grad.scalar_type()).device(grad.device());
  const at::Tensor points = identity_points(*spec_of(grad), size, align_corners, options);
  return grad.flatten(1, -2).mT().matmul(points);
}

}  // namespace

void register_interpolation(RuleTable& table) {
  for (const char* mode : {"upsample_nearest", "_upsample_nearest_exact"})
    for (size_t n : {1, 2, 3}) add_upsampling(table, mode + std::to_string(n) + "d", n);
  add_upsampling(table, "upsample_linear1d", 1);
  for (const char* mode : {"upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
                           "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"})
    add_upsampling(table, mode, 2);
  add_upsampling(table, "upsample_trilinear3d", 3);
  table.add({"aten::grid_sampler_2d", "aten::grid_sampler_3d"},
            Rule("nc…,n…p->nc…", describe_grid_sampler).linear_in_first().sampled());
  table.add({"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"},
            Rule("nc…,nc…,n…p->nc…,n…p", describe_grid_sampler_backward).linear_in_first().sampled());
  table.add("aten::affine_grid_generator",
            Rule("affine_grid", describe_affine_grid).linear().localized(localize_affine_grid));
  add_composition("affine_grid_generator_backward", &affine_grid_backward);
}

}  // namespace shardwise
