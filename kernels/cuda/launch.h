// kernels/cuda/launch.h: grids of teams, and kernel launches on them. Only for sources of this folder.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace shardwise::kernels::cuda {

inline constexpr int kThreads = 256;  // per block

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string("[kernels::cuda::") + what + "] CUDA refused: " + cudaGetErrorString(code) +
                           "." +
                           (code == cudaErrorNoKernelImageForDevice
                                ? " Build with -DCMAKE_CUDA_ARCHITECTURES=<this GPU's compute capability>."
                                : ""));
}

/// The teams of a grid. A team works on one row: adjacent threads of one warp, a power of two of them, each with a pack of adjacent
/// columns. A row with more packs than a warp has threads is divided into tiles.
struct Teams {
  int lanes;
  int64_t tiles;

  explicit Teams(int64_t n_packs)
      : lanes(static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(n_packs, 1, 32))))),
        tiles((n_packs + lanes - 1) / lanes) {}

  unsigned per_block() const { return kThreads / static_cast<unsigned>(lanes); }
};

/// Launches `kernel` with a team for every `rows_per_team` rows. Tiles are divided among teams as well, unless `rows_stay_whole`.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), const Teams& teams, int64_t n_rows, int rows_per_team,
            bool rows_stay_whole, void* stream, const Args&... args) {
  if (n_rows == 0 || teams.tiles == 0) return;
  const int64_t per_block = int64_t{teams.per_block()} * rows_per_team, n_blocks = (n_rows + per_block - 1) / per_block;
  if (n_blocks > INT32_MAX)
    throw std::runtime_error(std::string("[kernels::cuda::") + name + "] " + std::to_string(n_rows) +
                             " rows are more than one grid holds. Split them.");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(n_blocks),
                        rows_stay_whole ? 1u : static_cast<unsigned>(std::min<int64_t>(teams.tiles, 65535)));
  config.blockDim = dim3(static_cast<unsigned>(teams.lanes), teams.per_block());
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, Params(args)...), name);
}

}  // namespace shardwise::kernels::cuda
