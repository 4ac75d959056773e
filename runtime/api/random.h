// runtime/api/random.h: random numbers by global element index, so a tensor does not depend on its mesh and placements.
//
// Element i of a draw is a function of the draw's seed and of i alone, so a rank fills its own part of any layout, and replicas
// agree without communication.
#pragma once

#include "runtime/api/dtensor.h"

#include <ATen/core/Generator.h>

#include <cstdint>

namespace shardwise {

/// The seed of the next draw, taken from torch's default CPU generator, which it advances: call torch.manual_seed, and draw, alike on every
/// rank. Ranks that are threads share that generator, so each draws from its own copy, which is renewed when the generator's seed changes.
///
/// `generator`: a generator of any device to advance instead of the default one, alike on every rank. `mesh`: of the tensor that is drawn.
/// Throws: under the order check, c10::ValueError on all members if their seeds differ, because then their replicas would differ.
uint64_t next_seed(const DeviceMesh& mesh, const std::optional<at::Generator>& generator = {});

/// Uniform in [0, 1), to the last bit of the dtype's mantissa.
/// Throws: c10::ValueError for Partial, c10::TypeError for a dtype that is not floating point. Cost: no communication.
at::Tensor rand(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype);

/// Normal with mean 0 and deviation 1. Throws: as rand.
at::Tensor randn(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype);

}  // namespace shardwise
