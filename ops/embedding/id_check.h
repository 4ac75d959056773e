// ops/embedding/id_check.h: errors for ids out of range, raised on all ranks alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace shardwise {

/// The lowest and the highest of the ids added.
struct IdBounds {
  int64_t lowest = std::numeric_limits<int64_t>::max();
  int64_t highest = std::numeric_limits<int64_t>::min();

  void add(const at::Tensor& ids);
  void add(int64_t other_lowest, int64_t other_highest);
  /// The id farthest from [0, n_rows); nullopt if all ids are inside.
  std::optional<int64_t> worst(int64_t n_rows) const;
  /// Throws: c10::IndexError naming worst(), if an id is outside.
  void check(const char* op, int64_t n_rows) const;
};

/// Checks distributed ids: if ids are sharded, ranks exchange their bounds. Cost: one pass over this rank's ids; a message of two numbers per mesh
/// dim that shards them. On a GPU a device-side assertion replaces this check, as in torch's own lookups: bounds on the host would make the host wait
/// for the GPU.
void check_ids(const char* op, const at::Tensor& ids, int64_t n_rows);

}  // namespace shardwise
