// python/module.cpp: shardwise._C.
#include "python/bindings.h"

#include <torch/csrc/Exceptions.h>

namespace {

/// What wrapped functions do by themselves, for constructors and conversions of arguments, too: c10::ValueError is ValueError.
void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const py::error_already_set&) {
    throw;
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch");
  py::register_local_exception_translator(&translate);
  shardwise::bind_placement(module);
  shardwise::bind_picture(module);
  shardwise::bind_world(module);
  shardwise::bind_thread_world(module);
  shardwise::bind_device_mesh(module);
  shardwise::bind_dtensor(module);
  shardwise::bind_plan(module);
  shardwise::bind_local_shards_wrapper(module);
  shardwise::bind_factories(module);
  shardwise::bind_dispatch(module);
  shardwise::bind_comm_trace(module);
  shardwise::bind_comm_policy(module);
  shardwise::bind_lookup_options(module);
  shardwise::bind_row_optimizer(module);
  shardwise::bind_op_trace(module);
  shardwise::bind_rule(module);
  shardwise::bind_mp_moves(module);
  shardwise::bind_parallel_layers(module);
  shardwise::bind_parallel_weight(module);
  shardwise::bind_gil_release(module);
}
