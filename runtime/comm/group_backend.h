// runtime/comm/group_backend.h: a group's backends, and helpers for the tensors that a communication sends.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// The process group of a group of more than one rank, which its members make now if nobody needed it before. Errors name `op`.
/// Throws: c10::ValueError if it was destroyed.
c10d::ProcessGroup& open_group(const Group& group, const char* op);

/// The backend of `device` in the group, which has more than one rank; null if the group sends nothing. Errors name `op`.
/// Throws: c10::ValueError if it has none.
c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group, const char* op, c10::DeviceType device);

/// The device for messages of plain numbers: the CPU if the group has a backend for it, has one rank or sends nothing; otherwise the device
/// that it has a backend for.
c10::DeviceType numbers_device(const Group& group);

/// Creates the backend's communicator if the first collective does that (backend_traits.h) and none has run yet: reduces one byte on
/// `device`, which is not counted. Every member calls it before messages that some members have no part in.
void connect(const Group& group, const char* op, c10::Device device);

/// Throws: c10::ValueError with the shape and strides.
void check_contiguous(const char* op, const at::Tensor& tensor);

/// The memory of a contiguous tensor as a flat tensor of bytes, which every backend can send whatever the dtype.
at::Tensor bytes_of(const at::Tensor& tensor);

}  // namespace shardwise
