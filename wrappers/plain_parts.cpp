#include "wrappers/plain_parts.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"

#include <ATen/ops/cat.h>

namespace shardwise {

void check_mesh(const char* op, const at::Tensor& input, const at::Tensor& weight, int64_t mesh_dim) {
  const MeshPtr& mesh = spec_of(weight)->mesh();
  TORCH_CHECK_INDEX(mesh_dim >= 0 && mesh_dim < mesh->ndim(),
                    fmt::format("[{}] mesh dim {} does not exist: the mesh is {}. Use a dim in [0, {}).", op, mesh_dim,
                                to_string(*mesh), mesh->ndim()));
  if (!is_dtensor(input)) return;
  check_same_mesh(op, spec_of(input)->mesh(), mesh);
}

at::Tensor joined_parts(const at::Tensor& part, int64_t dim, const MeshPtr& mesh, const char* op) {
  const CommScope scope(op, CommScope::Cause::kProgram);
  std::vector<int64_t> mine{static_cast<int64_t>(part.scalar_type()), dim};
  mine.insert(mine.end(), part.sizes().begin(), part.sizes().end());
  const auto all = all_gather_numbers(*mesh->group(), mine);

  const auto words = [](const std::vector<int64_t>& numbers) {
    return fmt::format("{} [{}]", c10::toString(static_cast<c10::ScalarType>(numbers[0])),
                       fmt::join(numbers.begin() + 2, numbers.end(), ", "));
  };
  const std::vector<int64_t>& ranks = mesh->grid().ranks;
  const auto& first = all[mesh->group()->index_of(ranks[0])];
  const size_t place = 2 + static_cast<size_t>(first[1]);  // the first rank's dim, on all ranks
  Dims extents;
  for (const int64_t rank : ranks) {
    const auto& numbers = all[mesh->group()->index_of(rank)];
    std::vector<int64_t> alike = numbers;
    if (place < alike.size()) alike[place] = first[place];
    TORCH_CHECK_VALUE(alike == first, fmt::format("[{}] rank {} has a part {} along dim {}, rank {} one {}. Give parts "
                                                  "that differ in that dim alone.",
                                                  op, ranks[0], words(first), dim, rank, words(numbers)));
    extents.push_back(numbers[place]);
  }
  Dims sizes(part.sizes());
  sizes[dim] = 0;
  for (const int64_t extent : extents) sizes[dim] += extent;
  return from_local(part, mesh, {Placement::shard(dim, extents)}, {.shape = sizes});
}

at::Tensor local_part(const at::Tensor& tensor) {
  return spec_of(tensor)->boxes().size() <= 1 ? to_local(tensor) : at::cat(to_pieces(tensor), -1);
}

at::Tensor from_part(const at::Tensor& part, const SpecPtr& spec, const char* op) {
  if (!spec->is_member()) return from_pieces({}, spec);
  Dims widths;
  int64_t width = 0;
  for (const Box& box : spec->boxes()) width += widths.emplace_back(box.sizes.back());
  TORCH_CHECK_VALUE(part.dim() > 0 && part.size(-1) == width,
                    fmt::format("[{}] the part of shape [{}] should be {} wide: that is what rank {} has of the last "
                                "dim of {}. Give this rank's part, or the whole on every rank.",
                                op, fmt::join(part.sizes(), ", "), width, spec->mesh()->rank(), to_string(*spec)));
  return from_pieces(widths.size() == 1 ? std::vector{part} : part.split_with_sizes(widths, -1), spec);
}

at::Tensor placed_on(const at::Tensor& tensor, int64_t mesh_dim, const Placement& placement) {
  Placements placements = spec_of(tensor)->placements().vec();
  placements[mesh_dim] = placement;
  return redistribute(tensor, std::move(placements));
}

}  // namespace shardwise
