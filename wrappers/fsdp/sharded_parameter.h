// wrappers/fsdp/sharded_parameter.h: a parameter that ranks along a mesh share: where it lives, and which part of it each of them has.
//
// A parameter of 10 rows over "dp" (4): rows [0,3) [3,6) [6,9) [9,10). One of 0 dims: all of it on each. Along Shard(1): columns.
// One that ColwiseParallel sharded over "tp" (2) on a root ("dp", "tp") of 4 ranks: this rank's five rows over "dp" (2): [0,3) [3,5).
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <string>
#include <vector>

namespace shardwise {

/// A mesh of one dim, over which parameters are sharded, or of two: replicated over the first, and sharded over the second.
struct DataMesh {
  MeshPtr mesh;
  MeshPtr root;  // that `mesh` was sliced from, or itself

  /// The ranks among which a parameter is split, and those that have the same part. Pre: a member of the mesh.
  const GroupPtr& shard_group() const { return mesh->group(mesh->ndim() - 1); }
  /// Null on a mesh of one dim.
  GroupPtr replica_group() const { return mesh->ndim() > 1 ? mesh->group(0) : nullptr; }
  int64_t n_ranks() const { return mesh->size(); }
};

/// Throws: c10::ValueError, alike on all ranks, for a mesh of other numbers of dims.
void check_data_mesh(const DataMesh& data);

/// A run of indices along the split dim of this rank's whole parameter.
struct ShardRange {
  int64_t begin = 0;
  int64_t size = 0;
};

/// How a whole tensor is split among the members of a group.
struct Split {
  bool is_sharded = true;          // false: each member has all of it, as of a tensor of 0 dims
  int64_t dim = 0;                 // that is split
  std::vector<ShardRange> ranges;  // by member

  /// The part of the member at `index`; a view of `whole`.
  at::Tensor part(const at::Tensor& whole, int64_t index) const;
  /// The one at `index` of `n_slices` of about the same size; a view.
  at::Tensor slice(const at::Tensor& whole, int64_t index, int64_t n_slices) const;
};

class ShardedParameter {
 public:
  /// Of `parameter`, which is split as `along` says, a Shard: it is plain, or on other dims of data.root than those of data.mesh. Nothing is sent.
  /// Throws, alike on all ranks and naming it as `name`: c10::ValueError for one that is on the mesh already, or on a mesh that has no root in
  /// common with it, that is Partial, or in pieces, and for an `along` that is no Shard; c10::IndexError for a dim that it lacks.
  ShardedParameter(const std::string& name, const at::Tensor& parameter, const DataMesh& data,
                   const Placement& along = Placement::shard(0));

  /// This rank's part of `parameter`, a leaf with memory of its own that requires a gradient where `parameter` does. Sends nothing: each
  /// rank takes its part of its own copy. A tensor of a class of its own is split and copied by its class.
  /// Throws: c10::NotImplementedError where that cannot take a part.
  at::Tensor part_of(const at::Tensor& parameter) const;

  /// Where the parts live.
  const SpecPtr& spec() const { return spec_; }
  /// The whole one as modules compute with it: null for a plain tensor, else its layout on the meshes beside, in `dtype`.
  SpecPtr whole_spec(c10::ScalarType dtype) const;
  /// Of this rank's whole one.
  c10::IntArrayRef sizes() const { return sizes_; }
  c10::IntArrayRef strides() const { return strides_; }
  const Split& split() const { return split_; }
  /// The part of the member at `index` of `whole`, a tensor of sizes(); a view.
  at::Tensor part(const at::Tensor& whole, int64_t index) const { return split_.part(whole, index); }
  int64_t n_elements(int64_t index) const;
  Dims part_sizes(int64_t index) const;

 private:
  SpecPtr spec_;
  SpecPtr whole_;  // null where it is plain
  Dims sizes_, strides_;
  Split split_;  // among the sharding group
  int64_t index_ = 0;
};

}  // namespace shardwise
