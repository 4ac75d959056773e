// runtime/tensor/saved_storage.cpp: makes torch::save() of a distributed tensor an error.
//
// torch would write the tensor's storage, which is that of this rank's first piece, with the global sizes: an unreadable file. Before that
// it asks for metadata of the device type, and this is where we throw.
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <torch/csrc/jit/serialization/pickler.h>

namespace shardwise {
namespace {

void refuse(const at::Tensor& tensor, std::unordered_map<std::string, bool>& /*metadata*/) {
  const auto* const impl = maybe_dtensor(tensor);
  SW_CHECK_NOT_IMPLEMENTED(!impl,
                           "[save] got a DTensor, {}, but a file would hold only this rank's piece. Save the result of "
                           "full_tensor() on one rank; in Python use torch.distributed.checkpoint or state_dict().",
                           impl ? to_string(*impl->spec()) : "");
}

bool refuse_distributed() {
  for (const auto type : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    auto& known = torch::jit::GetBackendMetaSerialization().at(static_cast<size_t>(type));
    if (!known)
      known = std::pair(torch::jit::BackendMetaPtr(&refuse),
                        torch::jit::BackendMetaPtr([](const at::Tensor&, std::unordered_map<std::string, bool>&) {}));
  }
  return true;
}

const bool is_refused = refuse_distributed();

}  // namespace
}  // namespace shardwise
