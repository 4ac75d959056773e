#include "ops/support/plain_self.h"

#include "runtime/api/dtensor.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

namespace shardwise {

at::Tensor replica_of_plain(const char* op, const at::Tensor& plain, const MeshPtr& mesh, bool keeps_history,
                            size_t arg) {
  if (plain.dim() > 0) {
    const auto name = torch::jit::parseName(std::string("aten::") + op);
    check_plain(OpInfo(*c10::Dispatcher::singleton().findSchema(name)), plain, arg, mesh);
  }
  return replica_of(keeps_history ? plain : plain.detach(), mesh);
}

void find_mesh(const at::Tensor& operand, MeshPtr& mesh) {
  if (const auto* impl = maybe_dtensor(operand)) mesh = impl->spec()->mesh();
}

void find_mesh(const c10::List<std::optional<at::Tensor>>& operands, MeshPtr& mesh) {
  for (const std::optional<at::Tensor> operand : operands)
    if (operand) find_mesh(*operand, mesh);
}

}  // namespace shardwise
