// shardwise/shardwise.h: everything a C++ program needs, but for modules: wrappers/parallel_modules.h brings torch::nn's headers.
#pragma once

#include "ops/embedding/lookup_options.h"
#include "ops/embedding/row_optimizer.h"
#include "placements/layout.h"
#include "placements/picture.h"
#include "plans/traffic.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/env_world.h"
#include "runtime/tensor/device_mesh.h"
#include "runtime/threads/thread_world.h"
#include "wrappers/id_transform/exact_mapping.h"
#include "wrappers/id_transform/modulo_hash.h"
#include "wrappers/local_shards_wrapper.h"
#include "wrappers/mp_moves.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/parallel_weight.h"
