// shardwise/parallelize_module.h: tensor parallelism of torch::nn modules by a plan, like Python's parallelize_module.
//
//   sw::parallelize_module(model, mesh["tp"], {{"layers.*.up", sw::ColwiseParallel()}, {"layers.*.down", sw::RowwiseParallel()}});
//   at::Tensor y = sw::forward(model, x);
#pragma once

#include "shardwise/device_mesh.h"
#include "shardwise/parallel_style.h"

#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// A style for all modules whose names match: each part between dots may contain wildcards (*, ?, [ab]); "" is the outermost module.
struct PlanEntry {
  std::string names;
  ParallelStyle style;
};
using ParallelizePlan = std::vector<PlanEntry>;

struct ParallelizeOptions {
  /// The index in the mesh of the rank whose parameters are sent to all others; nullopt: each rank takes its part of its own parameters, and nothing
  /// is sent.
  std::optional<int64_t> src_data_rank = 0;
};

/// Replaces the parameters that the styles name by DTensors on `mesh`, which has one dim, in the module and in its members. A parameter that several
/// modules share stays one parameter, also in modules that the plan does not name.
///
/// Collective over the mesh. Throws on all ranks, before anything is sharded: c10::ValueError for a mesh of several dims, for names that match no
/// submodule, for a parameter that two styles lay out differently or that is distributed already, and for a parameter whose member is not known
/// (shardwise/module_tensors.h); c10::NotImplementedError for a module that a style does not know.
void parallelize_module(torch::nn::Module& module, const Mesh& mesh, const ParallelizePlan& plan,
                        const ParallelizeOptions& options = {});
template <class M>
void parallelize_module(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const ParallelizePlan& plan,
                        const ParallelizeOptions& options = {}) {
  parallelize_module(*module.ptr(), mesh, plan, options);
}

}  // namespace shardwise
