// shardwise/parallelize_module.h: tensor parallelism of torch::nn modules by a plan, as Python's parallelize_module.
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

/// The modules of a plan whose names fit: each part between dots may hold wildcards (*, ?, [ab]); "" is the outermost module.
struct PlanEntry {
  std::string names;
  ParallelStyle style;
};
using ParallelizePlan = std::vector<PlanEntry>;

struct ParallelizeOptions {
  /// The place in the mesh whose parameters are dealt to the others; none: every rank's own are taken, and nothing is sent.
  std::optional<int64_t> src_data_rank = 0;
};

/// Makes DTensors on `mesh`, of one dim, of the parameters that the styles name, in the module and in its members. A parameter that several
/// modules share stays one, in those that the plan does not name, too.
///
/// Collective over the mesh. Throws, before anything is sharded and alike on all ranks: c10::ValueError for a mesh of several dims, for names that
/// fit no submodule, for a parameter that two styles lay out differently or that is distributed already, and for one whose member is
/// not known (shardwise/module_tensors.h); c10::NotImplementedError for a module that a style does not know.
void parallelize_module(torch::nn::Module& module, const Mesh& mesh, const ParallelizePlan& plan,
                        const ParallelizeOptions& options = {});
template <class M>
void parallelize_module(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const ParallelizePlan& plan,
                        const ParallelizeOptions& options = {}) {
  parallelize_module(*module.ptr(), mesh, plan, options);
}

}  // namespace shardwise
