#include "wrappers/parallel_weight.h"

#include "text/check.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/init.h>

#include <array>
#include <cmath>
#include <utility>

namespace shardwise {
namespace {

using Draw = void (*)(const at::Tensor&);

constexpr std::array<std::pair<const char*, Draw>, 9> kDraws{{
    {"xavier_normal", [](const at::Tensor& tensor) { torch::nn::init::xavier_normal_(tensor); }},
    {"xavier_uniform", [](const at::Tensor& tensor) { torch::nn::init::xavier_uniform_(tensor); }},
    {"kaiming_normal", [](const at::Tensor& tensor) { torch::nn::init::kaiming_normal_(tensor); }},
    {"kaiming_uniform", [](const at::Tensor& tensor) { torch::nn::init::kaiming_uniform_(tensor, std::sqrt(5)); }},
    {"normal", [](const at::Tensor& tensor) { torch::nn::init::normal_(tensor); }},
    {"uniform", [](const at::Tensor& tensor) { torch::nn::init::uniform_(tensor); }},
    {"zeros", [](const at::Tensor& tensor) { torch::nn::init::zeros_(tensor); }},
    {"ones", [](const at::Tensor& tensor) { torch::nn::init::ones_(tensor); }},
    {"none", [](const at::Tensor&) {}},
}};

/// Keeps empty pieces, so that every rank has `stride` pieces and takes part in all messages.
Placement interleaved(c10::IntArrayRef sizes, const WeightSharding& sharding) {
  const std::vector<int64_t>& ranks = sharding.mesh->grid().ranks;
  const int64_t dim = sharding.placement.split_dim();
  std::vector<ShardMetadata> pieces;
  ShardMetadata piece{Dims(sizes.size()), Dims(sizes), 0};
  for (const int64_t block : chunk_sizes(sizes[dim], sharding.stride)) {
    const Dims extents = chunk_sizes(block, sharding.mesh->size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      piece.rank = ranks[i];
      piece.sizes[dim] = extents[i];
      pieces.push_back(piece);
      piece.offsets[dim] += extents[i];
    }
  }
  return Placement::enumerable(std::move(pieces));
}

Placements placements_of_weight(c10::IntArrayRef sizes, const WeightSharding& sharding) {
  const MeshPtr& mesh = sharding.mesh;
  SW_CHECK_INDEX(sharding.mesh_dim >= 0 && sharding.mesh_dim < mesh->ndim(),
                 "[parallel_weight] mesh dim {} does not exist: the mesh is {}. Use a dim in [0, {}).",
                 sharding.mesh_dim, to_string(*mesh), mesh->ndim());
  Placements placements(mesh->ndim());
  if (sharding.placement.is_whole()) return placements;
  const int64_t dim = sharding.placement.split_dim();
  SW_CHECK_INDEX(dim >= 0 && dim < static_cast<int64_t>(sizes.size()),
                 "[parallel_weight] dim {} does not exist: the weight is of shape [{}]. Use a dim in [0, {}).", dim,
                 fmt::join(sizes, ", "), sizes.size());
  SW_CHECK_VALUE(sharding.stride >= 1, "[parallel_weight] stride {} is no number of blocks. Use 1 or more.",
                 sharding.stride);
  SW_CHECK_VALUE(sharding.stride == 1 || mesh->ndim() == 1,
                 "[parallel_weight] stride {} interleaves pieces, which needs a 1-D mesh; this one is {}. Give the one "
                 "dim of it: mesh[\"tp\"], or submesh({{\"tp\"}}).",
                 sharding.stride, to_string(*mesh));
  if (sharding.stride > 1) return {interleaved(sizes, sharding)};
  placements[sharding.mesh_dim] = sharding.placement;
  return placements;
}

}  // namespace

at::Tensor parallel_weight(c10::IntArrayRef sizes, const WeightSharding& sharding, at::ScalarType dtype) {
  for (const int64_t size : sizes)
    SW_CHECK_VALUE(size >= 0, "[parallel_weight] shape [{}] has a negative size. Use 0 or more.",
                   fmt::join(sizes, ", "));
  return empty(sizes, sharding.mesh, placements_of_weight(sizes, sharding), dtype).set_requires_grad(true);
}

void initialize_(const at::Tensor& tensor, const std::string& init_type) {
  std::string names;
  for (const auto& [name, draw] : kDraws) {
    if (name == init_type) {
      if (!tensor.is_meta()) draw(tensor);
      return;
    }
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name);
  }
  SW_CHECK_VALUE(false, "[initialize_] \"{}\" is no distribution. Use one of {}.", init_type, names);
}

void zero_row_(const at::Tensor& tensor, std::optional<int64_t> row) {
  if (!row || tensor.is_meta()) return;
  const int64_t n_rows = tensor.size(0);
  SW_CHECK_INDEX(*row >= -n_rows && *row < n_rows,
                 "[zero_row_] row {} does not exist: the table has {} rows. Use one in [{}, {}).", *row, n_rows,
                 -n_rows, n_rows);
  const at::NoGradGuard no_grad;
  tensor.select(0, *row).zero_();
}

void set_master_(const at::Tensor& parameter, const at::Tensor& master) {
  SW_CHECK_VALUE(master.sizes() == parameter.sizes(),
                 "[set_master_] the master is of shape [{}], the parameter of [{}]. Give the whole tensor.",
                 fmt::join(master.sizes(), ", "), fmt::join(parameter.sizes(), ", "));
  const at::NoGradGuard no_grad;
  const SpecPtr& spec = spec_of(parameter);
  parameter.copy_(distribute_tensor(master.detach(), spec->mesh(), spec->placements().vec(), std::nullopt));
}

}  // namespace shardwise
