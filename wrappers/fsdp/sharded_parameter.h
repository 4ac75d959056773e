// wrappers/fsdp/sharded_parameter.h: a parameter that is split over the ranks of a mesh: its layout, and the part of each rank.
//
// A parameter of 10 rows over "dp" (4): rows [0,3) [3,6) [6,9) [9,10). A parameter of 0 dims is whole on each rank. Shard(1) splits columns. If
// ColwiseParallel sharded the parameter over "tp" (2), on a root ("dp", "tp") of 4 ranks, this rank's five rows are split over "dp" (2): [0,3) [3,5).
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <string>
#include <vector>

namespace shardwise {

/// A mesh of one dim, over which parameters are sharded, or of two: replicated over the first, and sharded over the second.
struct DataMesh {
  MeshPtr mesh;
  MeshPtr root;  // the mesh that `mesh` was sliced from, or `mesh` itself

  /// The ranks among which a parameter is split. Pre: this rank is a member of the mesh.
  const GroupPtr& shard_group() const { return mesh->group(mesh->ndim() - 1); }
  /// The ranks that have the same part; null on a mesh of one dim.
  GroupPtr replica_group() const { return mesh->ndim() > 1 ? mesh->group(0) : nullptr; }
  int64_t n_ranks() const { return mesh->size(); }
};

/// `mesh` and the root that it has in common with the meshes of the parameters, or its own.
/// Throws: c10::ValueError, alike on all ranks, for a mesh with another number of dims.
DataMesh data_mesh(const MeshPtr& mesh, const std::vector<at::Tensor>& parameters);

/// A run of indices along the split dim of this rank's whole parameter.
struct ShardRange {
  int64_t begin = 0;
  int64_t size = 0;
};

/// How a whole tensor is split among the members of a group.
struct Split {
  bool is_sharded = true;          // false: each member has the whole tensor, as for 0 dims
  int64_t dim = 0;                 // the dim that is split
  std::vector<ShardRange> ranges;  // by member

  /// The part of the member at `index`; a view of `whole`.
  at::Tensor part(const at::Tensor& whole, int64_t index) const;
  /// Slice `index` of `n_slices` slices of about equal size; a view.
  at::Tensor slice(const at::Tensor& whole, int64_t index, int64_t n_slices) const;
};

/// The split of a parameter for which none is given: along dim 0. If that is divided into given sizes: along the dim without given sizes that gives the
/// most ranks a part, the first of equals. `mesh`: its last dim shards.
Placement default_split(const at::Tensor& parameter, const MeshPtr& mesh);

class ShardedParameter {
 public:
  /// Splits `parameter` by `along`, a Shard. It is plain, or distributed on dims of data.root other than those of data.mesh. Sends nothing.
  /// Throws, alike on all ranks and naming it as `name`: c10::ValueError for a parameter that is already on data.mesh, or on a mesh of another root,
  /// that is Partial or in pieces, and for an `along` that is no Shard; c10::IndexError for a dim that the parameter does not have.
  ShardedParameter(const std::string& name, const at::Tensor& parameter, const DataMesh& data, const Placement& along);

  /// This rank's part of `parameter`, a leaf with memory of its own that requires a gradient if `parameter` does. Sends nothing: each rank takes its
  /// part of its own copy. A tensor subclass is split and copied by its class.
  /// Throws: c10::NotImplementedError if the class cannot take a part.
  at::Tensor part_of(const at::Tensor& parameter) const;

  /// The layout of the parts.
  const SpecPtr& spec() const { return spec_; }
  /// The layout, in `dtype`, of the whole parameter that modules compute with: null for a plain tensor, else on the mesh dims other than the data's.
  SpecPtr whole_spec(c10::ScalarType dtype) const;
  /// The sizes and strides of this rank's whole parameter.
  c10::IntArrayRef sizes() const { return sizes_; }
  c10::IntArrayRef strides() const { return strides_; }
  const Split& split() const { return split_; }
  /// The part of the member at `index` of `whole`, a tensor of sizes(); a view.
  at::Tensor part(const at::Tensor& whole, int64_t index) const { return split_.part(whole, index); }
  Dims part_sizes(int64_t index) const;

 private:
  SpecPtr spec_;
  SpecPtr whole_;  // null if plain
  Dims sizes_, strides_;
  Split split_;  // among the sharding group
  int64_t index_ = 0;
};

}  // namespace shardwise
