#include "shardwise/local_parts.h"

#include "placements/placement_list.h"
#include "runtime/comm/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

namespace shardwise {
namespace {

/// The facts about a rank's part that ranks exchange.
struct PartFacts {
  enum class State : int64_t { kPlain, kDistributed, kUndefined };

  State state = State::kPlain;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of a plain part
  Dims sizes;
};

PartFacts facts_of(const at::Tensor& local) {
  if (!local.defined()) return {.state = PartFacts::State::kUndefined};
  if (is_dtensor(local)) return {.state = PartFacts::State::kDistributed};
  return {.dtype = local.scalar_type(), .sizes = Dims(local.sizes())};
}

std::string words_of(const PartFacts& part) {
  return fmt::format("{} [{}]", c10::toString(part.dtype), fmt::join(part.sizes, ", "));
}

[[noreturn]] void refuse_parts(const std::vector<int64_t>& ranks, size_t other, const std::string& first,
                               const std::string& second, const Placements& placements) {
  TORCH_CHECK_VALUE(false,
                    fmt::format("[from_local_parts] rank {} gives {}, but rank {} gives {}: parts placed as {} must "
                                "have one dtype and may differ only along sharded dims. Give parts that fit.",
                                ranks[0], first, ranks[other], second, to_string(placements)));
}

/// Throws: c10::TypeError and c10::ValueError if some rank passed no plain tensor.
void check_are_parts(const std::vector<int64_t>& ranks, const std::vector<PartFacts>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    TORCH_CHECK_TYPE(parts[i].state != PartFacts::State::kDistributed,
                     fmt::format("[from_local_parts] the part of rank {} is a DTensor "
                                 "already. Use redistribute(mesh, placements), or give "
                                 "plain parts on all ranks.",
                                 ranks[i]));
    TORCH_CHECK_VALUE(
        parts[i].state != PartFacts::State::kUndefined,
        fmt::format(
            "[from_local_parts] the part of rank {} is undefined. Give a tensor, with no rows if the rank has none.",
            ranks[i]));
  }
}

/// Throws: c10::ValueError unless there is one placement per mesh dim.
void check_placements(const Placements& placements, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(placements.size()) == mesh.ndim(),
      fmt::format("[from_local_parts] {} has {} placements, and the mesh {} has {} dims. Give one per mesh "
                  "dim.",
                  to_string(placements), placements.size(), to_string(mesh), mesh.ndim()));
}

/// One tensor's parts on all members.
class Parts {
 public:
  /// `parts`: by member, in the order of `mesh`'s grid.
  Parts(const DeviceMesh& mesh, Placements placements, std::vector<PartFacts> parts)
      : grid_(mesh.grid()), placements_(std::move(placements)), parts_(std::move(parts)) {
    for (size_t i = 1; i < parts_.size(); ++i)
      if (parts_[i].sizes.size() != parts_[0].sizes.size() || parts_[i].dtype != parts_[0].dtype) refuse_member(i);
    const auto n_dims = static_cast<int64_t>(parts_[0].sizes.size());
    for (Placement& placement : placements_) {
      TORCH_CHECK_INDEX(
          placement.fits_dims(n_dims),
          fmt::format("[from_local_parts] tensor dim {} of {} does not exist: the parts have {} dims. Use {}.",
                      placement.dim(), to_string(placement), n_dims,
                      n_dims == 0 ? "Replicate()" : fmt::format("a dim in [{}, {})", -n_dims, n_dims)));
      placement = placement.with_dim_from_zero(n_dims);
    }
    for (int64_t dim = 0; dim < n_dims; ++dim) add_dim(dim);
  }

  const Dims& sizes() const { return sizes_; }
  const Placements& placements() const { return placements_; }

 private:
  void refuse_member(size_t member) const {
    refuse_parts(grid_.ranks, member, words_of(parts_[0]), words_of(parts_[member]), placements_);
  }

  /// The whole extent along `tensor_dim`, and the extents of its Shards.
  void add_dim(int64_t tensor_dim) {
    const std::vector<int64_t> sharding = mesh_dims_splitting(placements_, tensor_dim);
    int64_t n_parts = 1;
    for (const int64_t mesh_dim : sharding) n_parts *= grid_.shape[mesh_dim];
    std::vector<int64_t> extents(n_parts, -1);
    for (size_t member = 0; member < parts_.size(); ++member) {
      const Dims coord = *grid_.coord_of(grid_.ranks[member]);
      int64_t part = 0;
      for (const int64_t mesh_dim : sharding) part = part * grid_.shape[mesh_dim] + coord[mesh_dim];
      const int64_t extent = parts_[member].sizes[tensor_dim];
      if (extents[part] >= 0 && extents[part] != extent) refuse_member(member);
      extents[part] = extent;
    }
    sizes_.push_back(std::accumulate(extents.begin(), extents.end(), int64_t{0}));
    for (auto mesh_dim = sharding.rbegin(); mesh_dim != sharding.rend(); ++mesh_dim) {
      placements_[*mesh_dim] = Placement::shard(tensor_dim, extents);
      std::vector<int64_t> outer;
      for (size_t begin = 0; begin < extents.size(); begin += grid_.shape[*mesh_dim])
        outer.push_back(
            std::accumulate(extents.begin() + begin, extents.begin() + begin + grid_.shape[*mesh_dim], int64_t{0}));
      extents = std::move(outer);
    }
  }

  const RankGrid& grid_;
  Placements placements_;
  std::vector<PartFacts> parts_;
  Dims sizes_;
};

/// The facts of all ranks, by tensor and member, in the order of the grid.
std::vector<std::vector<PartFacts>> told_by_all(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh) {
  Facts own;
  own.number(static_cast<int64_t>(locals.size()));
  for (const at::Tensor& local : locals) {
    const PartFacts part = facts_of(local);
    own.number(static_cast<int64_t>(part.state)).number(static_cast<int64_t>(part.dtype)).list(part.sizes);
  }
  const auto all = agree(*mesh.group(), "from_local_parts", own);
  const auto n_first = FactReader(all[0]).number();
  std::vector<std::vector<PartFacts>> result(locals.size());
  for (const int64_t rank : mesh.grid().ranks) {
    FactReader reader(all[mesh.group()->index_of(rank)]);
    const int64_t n_tensors = reader.number();
    TORCH_CHECK_VALUE(n_tensors == n_first,
                      fmt::format("[from_local_parts] the ranks give different numbers of tensors: rank {} gives {}, "
                                  "but rank {} gives {}. Give the same number on each rank.",
                                  rank, n_tensors, mesh.group()->ranks[0], n_first));
    for (std::vector<PartFacts>& of_tensor : result) {
      const auto state = static_cast<PartFacts::State>(reader.number());
      const auto dtype = static_cast<c10::ScalarType>(reader.number());
      of_tensor.push_back({state, dtype, reader.list()});
    }
  }
  return result;
}

}  // namespace

std::vector<at::Tensor> from_local_parts(const std::vector<at::Tensor>& locals, const MeshPtr& mesh,
                                         const std::vector<Placements>& placements) {
  TORCH_CHECK_VALUE(
      locals.size() == placements.size(),
      fmt::format("[from_local_parts] got {} tensors and {} lists of placements. Give one list per tensor.",
                  locals.size(), placements.size()));
  for (const Placements& each : placements) check_placements(each, *mesh);
  std::vector<at::Tensor> result;
  if (locals.empty()) return result;
  if (!mesh->is_member()) {  // ranks outside the mesh get no facts: assumes equal parts
    for (size_t i = 0; i < locals.size(); ++i) result.push_back(from_local(locals[i], mesh, placements[i]));
    return result;
  }
  auto told = told_by_all(locals, *mesh);
  for (const auto& parts : told) check_are_parts(mesh->grid().ranks, parts);
  for (size_t i = 0; i < locals.size(); ++i) {
    const Parts parts(*mesh, placements[i], std::move(told[i]));
    result.push_back(from_local(locals[i], mesh, parts.placements(), {.shape = parts.sizes()}));
  }
  return result;
}

DTensor from_local_batch(const at::Tensor& local, const Mesh& mesh) {
  const MeshPtr root = mesh.root();
  Placements placements(root->ndim());
  for (const int64_t mesh_dim : dims_in_root(mesh)) placements[mesh_dim] = Shard(0);
  return DTensor(from_local_parts({local}, root, {placements})[0]);
}

std::vector<int64_t> dims_in_root(const Mesh& mesh) {
  std::vector<int64_t> result;
  if (mesh.root() == mesh)
    for (int64_t mesh_dim = 0; mesh_dim < mesh.ndim(); ++mesh_dim) result.push_back(mesh_dim);
  else
    for (const std::string& name : mesh.mesh_dim_names()) result.push_back(mesh.root()->dim_of(name));
  return result;
}

}  // namespace shardwise
