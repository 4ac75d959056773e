#include "wrappers/id_transform/modulo_hash.h"

#include "ops/embedding/id_rows.h"
#include "text/check.h"
#include "wrappers/id_transform/raw_ids.h"

namespace shardwise {

at::Tensor modulo_hash(const at::Tensor& ids, int64_t n_rows, int64_t seed) {
  constexpr const char* kModuloHash = "ModuloHash";
  SW_CHECK_VALUE(n_rows >= 1, "[{}] n_rows is {}. Use 1 or more.", kModuloHash, n_rows);
  if (is_dtensor(ids)) check_not_partial(kModuloHash, ids);
  SW_CHECK_TYPE(is_integer(ids), "[{}] ids are {}: they must be integers of up to 64 bits. Convert them, or hash them.",
                kModuloHash, c10::toString(ids.scalar_type()));
  return laid_out_as(ids, hashed_rows(flat_ids(ids), n_rows, seed));
}

}  // namespace shardwise
