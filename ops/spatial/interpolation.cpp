// ops/spatial/interpolation.cpp: upsampling, sampling at given points (grid_sampler), and affine grids of such points.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"

#include <ATen/Functions.h>

#include <string>

namespace shardwise {
namespace {

/// Forward and backward are linear in their only operand; the backward takes the global sizes as an argument.
void add_upsampling(RuleTable& table, const std::string& op, size_t n) {
  const Rule rule = planes("planes", n).linear();
  table.add("aten::" + op, Rule(rule).sampled());
  table.add("aten::" + op + "_backward", rule.sizes_in("input_size"));
}

/// One grid of two or three dims per transformation in the batch.
void describe_affine_grid(const OpCall& call, Signature& signature) {
  static const Rule flat("n__->n___"), deep("n__->n____");
  signature = (call.outputs[0].sizes.size() == 4 ? flat : deep).signature(call);
}

void localize_affine_grid(const LocalCall& local, std::vector<c10::IValue>& args) {
  std::vector<int64_t> size = local.call.arg("size").toIntVector();
  size[0] = local.outputs[0].sizes[0];
  args[local.call.op.arg_index("size")] = std::move(size);
}

/// torch's affine_grid_generator_backward makes plain grids for the whole batch. `points`: the homogeneous coordinates of the identity grid.
at::Tensor affine_grid_backward(const at::Tensor& grad, c10::IntArrayRef size, bool align_corners) {
  const auto options = at::TensorOptions().dtype(grad.scalar_type()).device(grad.device());
  const auto n_dims = static_cast<int64_t>(size.size()) - 2;
  Dims one_image(size);
  one_image[0] = 1;
  const at::Tensor identity = at::eye(n_dims, n_dims + 1, options).unsqueeze(0);
  const at::Tensor grid = at::affine_grid_generator(identity, one_image, align_corners).flatten(0, -2);
  const at::Tensor points = at::cat({grid, at::ones({grid.size(0), 1}, options)}, 1);
  return grad.flatten(1, -2).mT().matmul(replica_of(points, spec_of(grad)->mesh()));
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
  // Planes of the input are whole; points may be sharded.
  table.add("aten::grid_sampler_2d", Rule("nc__,nhw_->nchw").linear_in_first());
  table.add("aten::grid_sampler_3d", Rule("nc___,ndhw_->ncdhw").linear_in_first());
  table.add("aten::grid_sampler_2d_backward", Rule("nchw,nc__,nhw_->nc__,nhw_").linear_in_first());
  table.add("aten::grid_sampler_3d_backward", Rule("ncdhw,nc___,ndhw_->nc___,ndhw_").linear_in_first());
  table.add("aten::affine_grid_generator",
            Rule("affine_grid", describe_affine_grid).linear().localized(localize_affine_grid));
  add_composition("affine_grid_generator_backward", &affine_grid_backward);
}

}  // namespace shardwise
