// runtime/comm/group_backend.h: a group's backends, and what every communication needs of them and of the tensors that it moves.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardwise {

/// Of a group of more than one rank. `op` is named by the error.
/// Throws: c10::ValueError where it was destroyed.
c10d::ProcessGroup& open_group(const Group& group, const char* op);

/// The backend of `device` in the group, which has more than one rank. `op` is named by the error.
/// Throws: c10::ValueError where it has none.
c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group, const char* op, c10::DeviceType device);

/// Where numbers travel that belong to no tensor: the CPU where the group has a backend for it or is of one rank, else the device that it
/// has one for.
c10::DeviceType numbers_device(const Group& group);

/// Reduces one byte on `device`, counted by nobody, where that makes the communicator (backend_traits.h) and no collective has made it
/// before. Every member calls it before messages that some members have no part in.
void connect(const Group& group, const char* op, c10::Device device);

/// Throws: c10::ValueError with the shape and strides.
void check_contiguous(const char* op, const at::Tensor& tensor);

/// The memory of a contiguous tensor as a flat tensor of bytes: every backend moves those, whatever the dtype.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Gathers flat `numbers`, of one length and dtype on all ranks: [ranks, length] on the CPU, by group order. A communication
/// called `what` ("compare ids"), a text that lives as long as the program, which CommTrace leaves out unless `is_counted`. None in a group of
/// one rank.
at::Tensor gather_rows(const Group& group, const char* what, const at::Tensor& numbers, bool is_counted = false);

}  // namespace shardwise
