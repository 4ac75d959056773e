#include "wrappers/plain_parts.h"

#include "runtime/comm/agreement.h"
#include "text/check.h"

#include <ATen/ops/cat.h>

namespace shardwise {

void check_mesh(const char* op, const at::Tensor& input, const at::Tensor& weight, int64_t mesh_dim) {
  const MeshPtr& mesh = spec_of(weight)->mesh();
  SW_CHECK_INDEX(mesh_dim >= 0 && mesh_dim < mesh->ndim(),
                 "[{}] mesh dim {} does not exist: the mesh is {}. Use a dim in [0, {}).", op, mesh_dim,
                 to_string(*mesh), mesh->ndim());
  if (!is_dtensor(input)) return;
  check_same_mesh(op, spec_of(input)->mesh(), mesh);
}

at::Tensor joined_parts(const at::Tensor& part, int64_t dim, const MeshPtr& mesh, const char* op) {
  struct Part {
    c10::ScalarType dtype;
    int64_t dim;
    Dims sizes;
  };
  std::vector<Part> parts;
  Facts own;
  own.number(static_cast<int64_t>(part.scalar_type())).number(dim).list(part.sizes());
  for (const Facts& facts : agree(*mesh->group(), op, own)) {
    FactReader reader(facts);
    const auto dtype = static_cast<c10::ScalarType>(reader.number());
    const int64_t along = reader.number();
    parts.push_back({dtype, along, reader.list()});
  }

  const auto words = [](const Part& part) {
    return fmt::format("{} [{}]", c10::toString(part.dtype), fmt::join(part.sizes, ", "));
  };
  const std::vector<int64_t>& ranks = mesh->grid().ranks;
  const Part& first = parts[mesh->group()->index_of(ranks[0])];
  const auto place = static_cast<size_t>(first.dim);  // the first rank's dim, equal on all ranks
  SW_CHECK_INDEX(place < first.sizes.size(),
                 "[{}] rank {} has a part {}, which has no dim {}. Give parts that have it.", op, ranks[0],
                 words(first), first.dim);
  Dims extents;
  for (const int64_t rank : ranks) {
    const Part& other = parts[mesh->group()->index_of(rank)];
    Dims alike = other.sizes;
    if (place < alike.size()) alike[place] = first.sizes[place];
    SW_CHECK_VALUE(
        other.dtype == first.dtype && other.dim == first.dim && alike == first.sizes,
        "[{}] rank {} has a part {} along dim {}, but rank {} has a part {}. Give parts that differ in that dim only.",
        op, ranks[0], words(first), dim, rank, words(other));
    extents.push_back(other.sizes[place]);
  }
  Dims sizes(part.sizes());
  sizes[dim] = 0;
  for (const int64_t extent : extents) sizes[dim] += extent;
  return from_local(part, mesh, {Placement::shard(dim, extents)}, {.shape = sizes});
}

at::Tensor local_part(const at::Tensor& tensor) {
  return spec_of(tensor)->boxes().size() <= 1 ? to_piece(tensor) : at::cat(to_pieces(tensor), -1);
}

at::Tensor from_part(const at::Tensor& part, const SpecPtr& spec, const char* op) {
  if (!spec->is_member()) return from_pieces({}, spec);
  Dims widths;
  int64_t width = 0;
  for (const Box& box : spec->boxes()) width += widths.emplace_back(box.sizes.back());
  SW_CHECK_VALUE(part.dim() > 0 && part.size(-1) == width,
                 "[{}] the part of shape [{}] should be {} wide: rank {} has this many indices of the last dim of {}. "
                 "Give this rank's part, or the whole on every rank.",
                 op, fmt::join(part.sizes(), ", "), width, spec->mesh()->rank(), to_string(*spec));
  return from_pieces(widths.size() == 1 ? std::vector{part} : part.split_with_sizes(widths, -1), spec);
}

at::Tensor placed_on(const at::Tensor& tensor, int64_t mesh_dim, const Placement& placement) {
  Placements placements = spec_of(tensor)->placements().vec();
  placements[mesh_dim] = placement;
  return redistribute(tensor, std::move(placements));
}

}  // namespace shardwise
