// shardwise/modules.h: headers for programs with torch::nn modules. Separate from shardwise.h, because torch::nn's headers are slow to compile.
#pragma once

#include "shardwise/forward.h"
#include "shardwise/fully_shard.h"
#include "shardwise/module_tensors.h"
#include "shardwise/parallel_style.h"
#include "shardwise/parallelize_module.h"
#include "wrappers/parallel_modules.h"
