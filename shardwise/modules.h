// shardwise/modules.h: what a program with torch::nn modules includes beside shardwise.h: it brings torch::nn's headers, which take the compiler seconds.
#pragma once

#include "shardwise/forward.h"
#include "shardwise/fully_shard.h"
#include "shardwise/local_parts.h"
#include "shardwise/module_tensors.h"
#include "shardwise/parallel_style.h"
#include "shardwise/parallelize_module.h"
#include "wrappers/parallel_modules.h"
