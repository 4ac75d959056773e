// python/plan_of.h: access to the plan in a Python shardwise.Plan.
#pragma once

#include "plans/plan.h"

#include <torch/csrc/utils/pybind.h>

namespace shardwise {

/// Throws: TypeError for any other object. The plan lives as long as `object`.
const Plan& plan_of(py::handle object);

/// The names of the mesh dims of the plan; none for a plan between Layouts. Throws and lives as plan_of().
const MeshNames& mesh_names_of(py::handle object);

}  // namespace shardwise
