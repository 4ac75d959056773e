// shardwise/modules.h: for programs with torch::nn modules, in addition to shardwise.h, which does not include torch::nn's slow headers.
#pragma once

#include "shardwise/forward.h"
#include "shardwise/fully_shard.h"
#include "shardwise/local_parts.h"
#include "shardwise/module_tensors.h"
#include "shardwise/parallel_style.h"
#include "shardwise/parallelize_module.h"
#include "wrappers/parallel_modules.h"
