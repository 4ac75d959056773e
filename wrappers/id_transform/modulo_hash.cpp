#include "wrappers/id_transform/modulo_hash.h"

#include "ops/embedding/id_rows.h"
#include "ops/embedding/kernel_launch.h"
#include "text/check.h"
#include "wrappers/id_transform/raw_ids.h"

#include <ATen/ops/empty_like.h>

namespace shardwise {

at::Tensor modulo_hash(const at::Tensor& ids, int64_t n_rows, int64_t seed) {
  constexpr const char* kModuloHash = "ModuloHash";
  SW_CHECK_VALUE(n_rows >= 1, "[{}] n_rows is {}. Use 1 or more.", kModuloHash, n_rows);
  if (is_dtensor(ids)) check_not_partial(kModuloHash, ids);
  SW_CHECK_TYPE(is_integer(ids), "[{}] ids are {}: they must be integers of up to 64 bits. Convert them, or hash them.",
                kModuloHash, c10::toString(ids.scalar_type()));
  const at::Tensor flat = flat_ids(ids), rows = at::empty_like(flat);
  const auto* id = flat.const_data_ptr<int64_t>();
  auto* row = rows.mutable_data_ptr<int64_t>();
  share_out(flat.numel(), sizeof(int64_t), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      row[i] = static_cast<int64_t>(kernels::mixed(id[i], seed) % static_cast<uint64_t>(n_rows));
  });
  return laid_out_as(ids, rows);
}

}  // namespace shardwise
