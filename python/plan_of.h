// python/plan_of.h: what a shardwise.Plan of Python holds.
#pragma once

#include "pictures/picture.h"
#include "plans/plan.h"

#include <torch/csrc/utils/pybind.h>

namespace shardwise {

/// Throws: TypeError for any other object. The plan lives as long as `object`.
const Plan& plan_of(py::handle object);

/// Of the dims of the meshes that it was made for; none of Layouts. Throws and lives as plan_of().
const MeshNames& mesh_names_of(py::handle object);

}  // namespace shardwise
