#include "runtime/tensor/mesh_ranks.h"

#include "text/check.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <limits>

namespace shardwise {

void check_has_ranks(const World& world, c10::IntArrayRef mesh_shape) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t n_ranks = 1;
  for (const int64_t extent : mesh_shape) n_ranks = n_ranks > kMax / extent ? kMax : n_ranks * extent;
  if (n_ranks <= world.size()) return;
  const std::string number = n_ranks == kMax ? "2^63 or more" : std::to_string(n_ranks);
  SW_CHECK_VALUE(
      world.size() > 1 || World::is_thread(),
      "[device_mesh] the mesh [{}] needs {} ranks, and this program is one process. Start it with torchrun "
      "--nproc-per-node {} program.py, or a C++ program with torchrun --no-python --nproc-per-node {} ./program.",
      fmt::join(mesh_shape, ", "), number, number, number);
  SW_CHECK_VALUE(
      false,
      "[device_mesh] the mesh [{}] needs {} ranks, and the world has {}. Use a smaller mesh, or start more ranks.",
      fmt::join(mesh_shape, ", "), number, world.size());
}

}  // namespace shardwise
