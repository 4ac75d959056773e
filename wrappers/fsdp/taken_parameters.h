// wrappers/fsdp/taken_parameters.h: which parameters fully_shard() has split, because modules outside of the call may still hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise {

/// Notes that fully_shard() of the module `owner` has split `parameter`, or that `parameter` is this rank's part of one. Forgotten with the tensor.
void note_taken(const at::Tensor& parameter, const std::string& owner);

/// Throws: c10::ValueError, naming the parameter as `name`, if it was noted.
void check_not_taken(const std::string& name, const at::Tensor& parameter);

}  // namespace shardwise
