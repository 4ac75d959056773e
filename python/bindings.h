// python/bindings.h: the parts of shardwise._C, one per header that it spells for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace shardwise {

void bind_placement(py::module_& module);
void bind_picture(py::module_& module);
void bind_plan(py::module_& module);
void bind_world(py::module_& module);
void bind_thread_world(py::module_& module);
void bind_device_mesh(py::module_& module);
void bind_dtensor(py::module_& module);
void bind_local_shards_wrapper(py::module_& module);
void bind_factories(py::module_& module);
void bind_dispatch(py::module_& module);
void bind_comm_trace(py::module_& module);
void bind_comm_policy(py::module_& module);
void bind_lookup_options(py::module_& module);
void bind_row_optimizer(py::module_& module);
void bind_op_trace(py::module_& module);
void bind_rule(py::module_& module);
void bind_mp_moves(py::module_& module);
void bind_parallel_layers(py::module_& module);
void bind_parallel_weight(py::module_& module);
/// No names: ranks in one process let each other run while they wait.
void bind_gil_release(py::module_& module);

}  // namespace shardwise
