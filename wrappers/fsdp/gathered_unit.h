// wrappers/fsdp/gathered_unit.h: parameters that were gathered for one forward: dropped after it, and there again for its backward.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/StorageImpl.h>

#include <memory>
#include <vector>

namespace shardwise {

/// What autograd saved of the gathered parameters, itself or a view, keeps its storage and loses its memory: drop() frees that, and fetch(),
/// which the backward of an output calls before anything else, gathers all of them again. A parameter that nobody holds any more, such as a bias
/// that autograd did not save, travels with the others, so that what is sent does not depend on what one rank holds. Reading memory in
/// between is an error.
///
/// Under a torch that has no such error, before 2.12, nothing is dropped.
class GatheredUnit : public std::enable_shared_from_this<GatheredUnit> {
 public:
  /// `gathered[i]` is what `sharded[i]` became. Pre: nobody but autograd reads them from now on.
  static std::shared_ptr<GatheredUnit> drop(const std::vector<at::Tensor>& gathered,
                                            const std::vector<at::Tensor>& sharded);

  /// The backward of `output` begins with fetch().
  void fetch_before_backward_of(const at::Tensor& output);
  /// Collective, once. Throws: c10::Error, alike on all ranks, where a parameter was written to since.
  void fetch();

 private:
  struct Parameter {
    at::Tensor sharded;
    int64_t version;
    SpecPtr spec;                                                   // when gathered
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> pieces;  // what was dropped
  };

  std::vector<Parameter> parameters_;
  bool is_fetched_ = false;
};

}  // namespace shardwise
