// shardwise/shardwise.h: everything that a C++ program needs, except shardwise/modules.h for torch::nn modules.
#pragma once

#include "ops/embedding/lookup_operators.h"
#include "ops/embedding/lookup_options.h"
#include "ops/embedding/row_optimizer.h"
#include "placements/layout.h"
#include "plans/traffic.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/version.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/env_world.h"
#include "runtime/comm/events.h"
#include "runtime/tensor/device_mesh.h"
#include "shardwise/device_mesh.h"
#include "shardwise/dtensor.h"
#include "shardwise/pictures.h"
#include "shardwise/placements.h"
#include "wrappers/embedding_plan/plan_json.h"
#include "wrappers/embedding_plan/plan_text.h"
#include "wrappers/id_transform/exact_mapping.h"
#include "wrappers/id_transform/modulo_hash.h"
#include "wrappers/local_shards_wrapper.h"
#include "wrappers/mp_moves.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/parallel_weight.h"

#include <torch/types.h>
