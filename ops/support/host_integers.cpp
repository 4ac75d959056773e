#include "ops/support/host_integers.h"

#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"

namespace shardwise {

Dims integers_in(const at::Tensor& tensor) {
  check_not_traced("numbers that decide sizes");
  const at::Tensor all = is_dtensor(tensor) ? full_tensor(tensor.detach()) : tensor;
  const at::Tensor integers = all.to(at::kCPU, at::kLong).contiguous();
  return {integers.const_data_ptr<int64_t>(), integers.const_data_ptr<int64_t>() + integers.numel()};
}

}  // namespace shardwise
