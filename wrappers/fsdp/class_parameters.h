// wrappers/fsdp/class_parameters.h: parameters that are tensor subclasses (runtime/tensor/subclass.h) and are gathered by the hooks of their classes.
//
//   weight, a subclass with bfloat16 rows and a scale per rank, [10, 4] over 3 ranks:
//     pieces()  this rank's tensors: BFloat16 [4, 4] and Float [1]            (fsdp_pre_all_gather)
//     gather    with all other parameters of the group: [10, 4] and [3]
//     whole()   makes the tensor that modules compute with from these         (fsdp_post_all_gather)
//
// Before the first gather the ranks exchange the number, dtypes and sizes of their tensors. These may not change afterwards.
#pragma once

#include "wrappers/fsdp/gathered_memory.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// The result of a class's hook for a rank's piece of a parameter.
struct ClassPieces {
  std::vector<at::Tensor> tensors;
  std::string fault;  // what the hook returned instead of a tuple of tensors and metadata; else ""
};

/// A whole parameter, and further tensors whose memory is freed together with the gathered memory.
struct ClassWhole {
  at::Tensor whole;
  std::vector<at::Tensor> inner;
};

/// The hooks of classes, by parameter of the group. They may throw.
struct ClassCalls {
  /// `sizes`: of the whole parameter.
  std::function<ClassPieces(size_t parameter, std::vector<int64_t> sizes)> pieces;
  /// `kept`: the whole parameter of an earlier call, or undefined. If it is defined, the hook writes the values into it and returns nullopt.
  std::function<std::optional<ClassWhole>(size_t parameter, const std::vector<at::Tensor>& gathered,
                                          const at::Tensor& kept)>
      whole;
};

/// Pre: take_pieces() and make_wholes() are called without recording of gradients.
class ClassParameters {
 public:
  /// Holds the parameters whose `sharded` is a tensor subclass. Pre: the arguments outlive this object.
  ClassParameters(const std::vector<std::string>& names, const std::vector<ShardedParameter>& parameters,
                  const std::vector<at::Tensor>& sharded);

  bool empty() const { return parameters_.empty(); }
  bool contains(size_t parameter) const;
  void set_calls(ClassCalls calls) { calls_ = std::move(calls); }
  /// The dtypes of the tensors that are sent for a parameter, "Byte and Float". Pre: take_pieces() was called.
  std::string sent_as(size_t parameter) const;

  /// Puts this rank's tensors into `own`, by tensor of `memory`. The first call adds the tensors to `memory`, and is collective over `ranks`.
  /// Throws: c10::TypeError or c10::ValueError for tensors that cannot be sent, and any exception of a hook; in the first call alike on all ranks.
  void take_pieces(const Group& ranks, GatheredMemory& memory, std::vector<at::Tensor>& own);

  /// Lets the classes make whole parameters from the gathered tensors. The first call replaces `leaves[i]`; later calls write into it. Returns true
  /// if some leaf was replaced. Throws: c10::ValueError for sizes other than the parameter's, and any exception of a hook.
  bool make_wholes(const GatheredMemory& memory, std::vector<at::Tensor>& leaves);
  /// Frees the memory of the tensors in ClassWhole::inner.
  void release();

 private:
  struct Tensor {
    c10::ScalarType dtype;
    Dims sizes;  // of this rank's tensor
  };
  struct Parameter {
    size_t index;                        // in the group
    std::vector<Tensor> tensors;         // known since the first gather
    size_t first = 0;                    // the first of these tensors in the memory
    bool is_made = false;                // the leaf exists
    std::vector<c10::Storage> storages;  // outside the gathered memory
  };

  std::vector<at::Tensor> pieces_of(const Parameter& parameter, c10::Device device, int64_t index) const;
  void check_as_before(const Parameter& parameter, const std::vector<at::Tensor>& pieces) const;
  void agree_on(const Group& ranks, GatheredMemory& memory, std::vector<std::vector<at::Tensor>>& pieces);
  std::string whose(const Parameter& parameter) const;

  const std::vector<std::string>& names_;
  const std::vector<ShardedParameter>& all_;  // of the group
  const std::vector<at::Tensor>& sharded_;
  std::vector<Parameter> parameters_;
  ClassCalls calls_;
  bool are_known_ = false;   // sizes of the tensors are agreed
  bool have_memory_ = true;  // `storages` are allocated
};

}  // namespace shardwise
