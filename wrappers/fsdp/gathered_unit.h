// wrappers/fsdp/gathered_unit.h: parameters that are gathered for one forward, dropped after it, and gathered again for its backward.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/StorageImpl.h>

#include <memory>
#include <vector>

namespace shardwise {

/// Autograd may have saved a gathered parameter or a view of it. drop() frees the memory and keeps the storage; fetch(), which the backward of an
/// output calls first, gathers all parameters again into the same storages. A parameter that is no longer alive, such as a bias that autograd did not
/// save, is sent as well, so that messages do not depend on what a rank keeps alive. Reading the memory in between is an error.
///
/// Before torch 2.12, which introduced this error, nothing is dropped.
class GatheredUnit : public std::enable_shared_from_this<GatheredUnit> {
 public:
  /// `gathered[i]` is the gathered `sharded[i]`. Pre: only autograd reads the gathered parameters from now on.
  static std::shared_ptr<GatheredUnit> drop(const std::vector<at::Tensor>& gathered,
                                            const std::vector<at::Tensor>& sharded);

  /// Makes the backward of `output` call fetch() first.
  void fetch_before_backward_of(const at::Tensor& output);
  /// Gathers the parameters again. Collective; only the first call has an effect. Throws: c10::Error, alike on all ranks, if a parameter was written
  /// to since drop().
  void fetch();

 private:
  struct Parameter {
    at::Tensor sharded;
    int64_t version;
    SpecPtr spec;                                                   // when gathered
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> pieces;  // storages whose memory was freed
  };

  std::vector<Parameter> parameters_;
  bool is_fetched_ = false;
};

}  // namespace shardwise
