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
  /// The id that is farthest from [0, n_rows), where one is outside.
  std::optional<int64_t> worst(int64_t n_rows) const;
  /// Throws: c10::IndexError naming the id that is farthest from [0, n_rows), where one is outside.
  void check(const char* op, int64_t n_rows) const;
};

/// The same for distributed ids: ranks exchange their bounds where ids are sharded. Cost: one pass over this rank's ids; a message of two
/// numbers per mesh dim that shards them. On a GPU an assertion of the device takes its place, as in torch's own lookups: bounds on the host
/// would make it wait for the GPU.
void check_ids(const char* op, const at::Tensor& ids, int64_t n_rows);

}  // namespace shardwise
