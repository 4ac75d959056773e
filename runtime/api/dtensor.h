// runtime/api/dtensor.h: making distributed tensors, moving them and taking them apart; all differentiable.
//
//   auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{4}, {0, 1, 2, 3}});
//   at::Tensor table = distribute_tensor(torch::rand({10, 3}), mesh, {Placement::shard(0)});   // 3,3,3,1 rows
//   at::Tensor columns = redistribute(table, {Placement::shard(1)});
//   at::Tensor dense = full_tensor(columns);
#pragma once

#include "runtime/api/distribute_tensor.h"
#include "runtime/api/factories.h"
#include "runtime/api/from_local.h"
#include "runtime/api/redistribute.h"
#include "runtime/api/to_local.h"
