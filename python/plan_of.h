// python/plan_of.h: the plan that a shardwise.Plan of Python holds.
#pragma once

#include "plans/plan.h"

#include <torch/csrc/utils/pybind.h>

namespace shardwise {

/// Throws: TypeError for any other object. The plan lives as long as `object`.
const Plan& plan_of(py::handle object);

}  // namespace shardwise
