#include "tests/support/dense.h"

#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise {
namespace {

using Compute = std::function<Tensors(const Tensors&)>;

DenseDevice& dense_device() {
  static DenseDevice device;
  return device;
}

/// The whole computation on one rank, and what it was given.
struct Dense {
  Tensors inputs, outputs;
  Tensors offsets;  // by input: what the pieces of a Partial are apart
  Tensors grads_of_outputs, grads_of_inputs;
};

at::Tensor random(const Dims& sizes, const DenseOptions& options, at::Generator& generator) {
  const at::Tensor values =
      at::randint(options.low, options.high, sizes, generator, at::TensorOptions().dtype(at::kLong));
  return at::isFloatingType(options.dtype) ? values.to(options.dtype).div_(16) : values.to(options.dtype);
}

/// The gradients of `inputs`; undefined where no output depends on one.
Tensors gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& grads_of_outputs) {
  Tensors differentiable, grads;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    differentiable.push_back(outputs[i]);
    grads.push_back(grads_of_outputs[i]);
  }
  if (differentiable.empty()) return Tensors(inputs.size());
  return torch::autograd::grad(differentiable, inputs, grads, std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

Dense run_dense(const Compute& compute, const std::vector<Dims>& sizes, const DenseOptions& options) {
  Dense dense;
  auto generator = at::detail::createCPUGenerator(/*seed_val=*/7);
  const bool with_grad = options.with_grad && at::isFloatingType(options.dtype);
  for (const Dims& of_input : sizes) {
    dense.inputs.push_back(random(of_input, options, generator).set_requires_grad(with_grad));
    dense.offsets.push_back(random(of_input, options, generator));
  }
  dense.outputs = compute(dense.inputs);
  for (const at::Tensor& output : dense.outputs) {
    at::Tensor grad;
    if (output.defined()) grad = random(Dims(output.sizes()), options, generator).to(output.scalar_type());
    dense.grads_of_outputs.push_back(grad);
  }
  dense.grads_of_inputs = gradients(dense.outputs, dense.inputs, dense.grads_of_outputs);
  return dense;
}

/// A split of `length` in `n` whose first piece is empty and the others uneven: 5 in 3 is 0,1,4.
Dims uneven_sizes(int64_t length, int64_t n) {
  Dims result(n, 0);
  for (int64_t i = 1; i < n && length > 0; ++i) {
    result[i] = i + 1 < n ? std::min<int64_t>(i, length) : length;
    length -= result[i];
  }
  return result;
}

/// Bands of rows, each in a left and a right half where there are columns; dealt to the ranks in turn, the last ones first.
Placement dealt_boxes(c10::IntArrayRef sizes, c10::ArrayRef<int64_t> ranks) {
  std::vector<ShardMetadata> pieces;
  const auto n = static_cast<int64_t>(ranks.size());
  const Dims rows = chunk_sizes(sizes[0], n + 1);
  const Dims columns = sizes.size() > 1 ? chunk_sizes(sizes.back(), 2) : Dims{1};
  Dims offsets(sizes.size(), 0);
  for (int64_t n_rows : rows) {
    offsets.back() = sizes.size() > 1 ? 0 : offsets.back();
    for (int64_t n_columns : columns) {
      Dims extent(sizes);
      if (sizes.size() > 1) extent.back() = n_columns;
      extent[0] = n_rows;
      const auto dealt = static_cast<int64_t>(pieces.size());
      if (Box{offsets, extent}.numel() > 0)
        pieces.insert(pieces.begin(), {offsets, extent, ranks[(2 * dealt + 1) % n]});
      if (sizes.size() > 1) offsets.back() += n_columns;
    }
    offsets[0] += n_rows;
  }
  return Placement::enumerable(std::move(pieces));
}

std::vector<Placement> on_mesh_dim(const Dims& sizes, const Dims& mesh, size_t mesh_dim, const DenseOptions& options) {
  std::vector<Placement> result{Placement::replicate()};
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    result.push_back(Placement::shard(static_cast<int64_t>(dim)));
    if (mesh_dim == 0 && mesh[0] > 1 && sizes[dim] > 0)
      result.push_back(Placement::shard(static_cast<int64_t>(dim), uneven_sizes(sizes[dim], mesh[0])));
    if (mesh_dim + 1 == mesh.size() && sizes[dim] > 0)
      result.push_back(Placement::block_shard(static_cast<int64_t>(dim), 2));
    if (mesh_dim + 1 == mesh.size() && sizes[dim] > 1)
      result.push_back(Placement::strided_shard(static_cast<int64_t>(dim), 2));
  }
  if (options.with_partial && options.dtype != at::kBool) result.push_back(Placement::partial());
  return result;
}

/// Every layout of one operand.
std::vector<Placements> layouts_of(const Dims& sizes, const RankGrid& grid, const DenseOptions& options) {
  std::vector<Placements> result{{}};
  for (size_t m = 0; m < grid.shape.size(); ++m) {
    std::vector<Placements> longer;
    for (const Placements& outer : result)
      for (const Placement& placement : on_mesh_dim(sizes, grid.shape, m, options)) {
        longer.push_back(outer);
        longer.back().push_back(placement);
      }
    result = std::move(longer);
  }
  if (options.with_enumerable && grid.shape.size() == 1 && !sizes.empty() && Box::whole(sizes).numel() > 0)
    result.push_back({dealt_boxes(sizes, grid.ranks)});
  return result;
}

/// At most `limit` combinations of one layout per operand, spread evenly over all of them.
std::vector<std::vector<Placements>> combinations(const std::vector<Dims>& sizes, const RankGrid& grid,
                                                  const DenseOptions& options) {
  std::vector<std::vector<Placements>> layouts;
  int64_t total = 1;
  for (const Dims& of_input : sizes) {
    layouts.push_back(layouts_of(of_input, grid, options));
    total *= static_cast<int64_t>(layouts.back().size());
  }
  int64_t step = std::max<int64_t>(total / options.max_combinations, 1);
  while (std::gcd(step, total) != 1) ++step;
  std::vector<std::vector<Placements>> result;
  for (int64_t i = 0; i < std::min(total, options.max_combinations); ++i) {
    int64_t number = i * step % total;
    auto& combination = result.emplace_back();
    for (const auto& of_operand : layouts) {
      const auto n = static_cast<int64_t>(of_operand.size());
      combination.push_back(of_operand[number % n]);
      number /= n;
    }
  }
  return result;
}

at::Tensor part_of(at::Tensor tensor, const Box& box) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) tensor = tensor.narrow(dim, box.offsets[dim], box.sizes[dim]);
  return tensor;
}

/// Moves `offset` between the pieces that are summed, so that none of them is the whole value or zero.
void spread(const at::Tensor& tensor, const at::Tensor& offset) {
  const auto* impl = maybe_dtensor(tensor);
  const Spec& spec = *impl->spec();
  if (!spec.is_member()) return;
  for (int64_t m = 0; m < spec.mesh()->ndim(); ++m) {
    if (!spec.placements()[m].is_partial() || spec.mesh()->size(m) == 1) continue;
    const int64_t coord = (*spec.mesh()->coord())[m];
    for (size_t i = 0; i < spec.boxes().size(); ++i) {
      const at::Tensor part = part_of(offset, spec.boxes()[i]).to(impl->device());
      if (coord == 0) impl->shards()[i].sub_(part);
      if (coord == spec.mesh()->size(m) - 1) impl->shards()[i].add_(part);
    }
  }
}

Tensors distributed_inputs(const Dense& dense, const MeshPtr& mesh, const std::vector<Placements>& layouts) {
  Tensors result;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < layouts.size(); ++i) {
    at::Tensor tensor = distribute_tensor(dense.inputs[i].detach(), mesh, layouts[i], /*src_data_rank=*/std::nullopt);
    spread(tensor, dense.offsets[i]);
    result.push_back(tensor.set_requires_grad(dense.inputs[i].requires_grad()));
  }
  return result;
}

/// Gradients of the outputs laid out as these are, replicated where they are Partial.
Tensors distributed_grads(const Dense& dense, const Tensors& outputs) {
  Tensors result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_dtensor(outputs[i])) {
      result.emplace_back();
      continue;
    }
    Placements placements = without_partial(spec_of(outputs[i])->placements());
    result.push_back(
        distribute_tensor(dense.grads_of_outputs[i], spec_of(outputs[i])->mesh(), placements, std::nullopt));
  }
  return result;
}

/// Collective. Compares shapes everywhere and values on members.
void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& dense, const DenseOptions& options) {
  ASSERT_EQ(ours.defined(), dense.defined()) << what;
  if (!dense.defined()) return;
  ASSERT_TRUE(is_dtensor(ours)) << what << " is a plain tensor";
  const Spec& spec = *spec_of(ours);
  EXPECT_EQ(ours.sizes(), dense.sizes()) << what;
  EXPECT_EQ(ours.scalar_type(), dense.scalar_type()) << what;
  at::NoGradGuard no_grad;
  for (const at::Tensor& piece : to_pieces(ours.detach())) EXPECT_EQ(piece.scalar_type(), spec.dtype()) << what;
  const at::Tensor whole = full_tensor(ours.detach()).cpu();
  if (!spec.is_member() || whole.sizes() != dense.sizes()) return;
  const double tolerance = options.is_exact ? 0 : whole.scalar_type() == at::kFloat ? 1e-6 : 1e-12;
  EXPECT_TRUE(at::allclose(whole, dense.detach().to(whole.scalar_type()), tolerance, tolerance, /*equal_nan=*/true))
      << what << " on rank " << spec.mesh()->rank() << ", laid out as " << to_string(spec) << "\n"
      << whole << "\ndense\n"
      << dense;
}

void run_combination(const std::string& name, const Compute& compute, const Dense& dense, const MeshPtr& mesh,
                     const std::vector<Placements>& layouts, const DenseOptions& options) {
  const Tensors inputs = distributed_inputs(dense, mesh, layouts);
  const Tensors outputs = compute(inputs);
  ASSERT_EQ(outputs.size(), dense.outputs.size()) << name;
  for (size_t i = 0; i < outputs.size(); ++i)
    compare(fmt::format("{}: output {}", name, i), outputs[i], dense.outputs[i], options);
  const Tensors grads = gradients(outputs, inputs, distributed_grads(dense, outputs));
  for (size_t i = 0; i < grads.size(); ++i)
    compare(fmt::format("{}: gradient of input {}", name, i), grads[i], dense.grads_of_inputs[i], options);
}

std::string describe(const std::string& name, const std::vector<Placements>& layouts, const DeviceMesh& mesh) {
  std::string text = name + " of";
  for (const Placements& layout : layouts) text += (layout == layouts[0] ? " " : ", ") + to_string(layout);
  return text + " on " + to_string(mesh);
}

/// Ranks n, n-1, ..., 1; rank 0 stays outside.
RankGrid descending_grid(const Dims& shape) {
  RankGrid grid{shape, std::vector<int64_t>(Box::whole(shape).numel())};
  std::iota(grid.ranks.rbegin(), grid.ranks.rend(), 1);
  return grid;
}

}  // namespace

void expect_same_as_dense(const std::string& name, const Compute& compute, const std::vector<Dims>& sizes,
                          const DenseOptions& options) {
  const Dense dense = run_dense(compute, sizes, options);
  for (const Dims& shape : options.meshes) {
    const RankGrid grid = descending_grid(shape);
    const auto all_layouts = combinations(sizes, grid, options);
    const auto run_all = [&] {
      auto mesh = DeviceMesh::create(World::current(), dense_device().type, grid);
      for (const auto& layouts : all_layouts) {
        const std::string described = describe(name, layouts, *mesh);
        try {
          run_combination(described, compute, dense, mesh, layouts, options);
        } catch (c10::Error& error) {
          error.add_context(described);
          throw;
        }
        if (const std::string faults = dense_device().faults(); !faults.empty())
          ADD_FAILURE() << described << "\n" << faults;
        if (testing::Test::HasFailure()) return;
      }
    };
    const std::string error =
        error_of_ranks(grid.size() + 1, [&](World& world) { dense_device().run_rank(world, run_all); });
    if (!error.empty()) ADD_FAILURE() << error;
    if (testing::Test::HasFailure()) return;
  }
}

void set_dense_device(DenseDevice device) { dense_device() = std::move(device); }

int64_t bytes_received(const Compute& compute, const std::vector<Dims>& sizes, const Dims& mesh,
                       const std::vector<Placements>& layouts) {
  DenseOptions options;
  options.with_grad = false;
  const Dense dense = run_dense(compute, sizes, options);
  const RankGrid grid = descending_grid(mesh);
  const auto bytes = on_each_rank(grid.size() + 1, [&](World&) {
    const Tensors inputs = distributed_inputs(dense, DeviceMesh::create(World::current(), c10::kCPU, grid), layouts);
    CommTrace trace;
    compute(inputs);
    return trace.bytes_received();
  });
  return *std::ranges::max_element(bytes);
}

const Rule& rule(const std::string& op) {
  const Rule* found = RuleTable::global().find(op);
  TORCH_CHECK_VALUE(found, fmt::format("[rule] {} has none.", op));
  return *found;
}

}  // namespace shardwise
