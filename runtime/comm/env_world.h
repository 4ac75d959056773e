// runtime/comm/env_world.h: the World of a C++ program started by torchrun.
//
//   torchrun --no-python --nproc-per-node 4 ./program
//   int main() { auto world = shardwise::init_from_env(); ... }
#pragma once

#include "runtime/comm/world.h"

#include <chrono>
#include <memory>

namespace shardwise {

/// Connects to the other processes at MASTER_ADDR:MASTER_PORT as RANK of WORLD_SIZE, and calls World::set_process. CPU tensors use Gloo;
/// CUDA tensors use NCCL, in a build that has it.
///
/// `timeout`: how long a process waits for the others, here and in each collective.
/// Throws: c10::ValueError naming a variable that is missing or not a number, c10::NotImplementedError in a build without Gloo's headers.
/// Collective over all processes.
std::shared_ptr<World> init_from_env(std::chrono::milliseconds timeout = std::chrono::minutes(30));

/// The World of a program with a single process; calls World::set_process. Never communicates.
std::shared_ptr<World> single_world();

}  // namespace shardwise
