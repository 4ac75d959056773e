// wrappers/fsdp/class_parameters.h: parameters of classes of their own (runtime/tensor/subclass.h), which are gathered as their classes say.
//
//   weight, a class of bfloat16 rows and a scale per rank, [10, 4] over 3 ranks:
//     pieces()  this rank's tensors: BFloat16 [4, 4] and Float [1]            (fsdp_pre_all_gather)
//     gather    with all other parameters of the group: [10, 4] and [3]
//     whole()   makes the tensor that modules compute with from these         (fsdp_post_all_gather)
//
// The ranks tell each other once, before the first gather, how many tensors they have, of which dtypes and sizes. These stay.
#pragma once

#include "wrappers/fsdp/gathered_memory.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// The answer of a class for a rank's piece of a parameter.
struct ClassPieces {
  std::vector<at::Tensor> tensors;
  std::string fault;  // what it gave instead of a tuple of tensors and metadata; else ""
};

/// A whole parameter, and tensors whose memory is to be freed with that of the gathered ones.
struct ClassWhole {
  at::Tensor whole;
  std::vector<at::Tensor> inner;
};

/// The calls of classes, by parameter of the group. They run without recording gradients, and may throw.
struct ClassCalls {
  /// `sizes`: of the whole parameter.
  std::function<ClassPieces(size_t parameter, std::vector<int64_t> sizes)> pieces;
  /// Nothing where `kept`, what an earlier call gave, is defined: then that gets the values.
  std::function<std::optional<ClassWhole>(size_t parameter, const std::vector<at::Tensor>& gathered,
                                          const at::Tensor& kept)>
      whole;
};

class ClassParameters {
 public:
  /// Holds the parameters whose `sharded` is an object of a class. Pre: the arguments outlive this.
  ClassParameters(const std::vector<std::string>& names, const std::vector<ShardedParameter>& parameters,
                  const std::vector<at::Tensor>& sharded);

  bool empty() const { return parameters_.empty(); }
  bool contains(size_t parameter) const;
  void set_calls(ClassCalls calls) { calls_ = std::move(calls); }
  /// The dtypes of the tensors that are sent for a parameter, "Byte and Float". Pre: take_pieces() was called.
  std::string sent_as(size_t parameter) const;

  /// Puts this rank's tensors into `own`, by tensor of `memory`. The first call adds these to `memory`, and is collective over `ranks`.
  /// Throws: c10::TypeError or c10::ValueError for what no exchange can carry, and what a class throws; in the first call alike on all ranks.
  void take_pieces(const Group& ranks, GatheredMemory& memory, std::vector<at::Tensor>& own);

  /// Has the classes make whole parameters of what was gathered. `leaves[i]` is replaced by the first one, which keeps its place then.
  /// Returns true where some were replaced. Throws: c10::ValueError for sizes other than the parameter's, and what a class throws.
  bool make_wholes(const GatheredMemory& memory, std::vector<at::Tensor>& leaves);
  /// Frees the memory of the tensors that whole() named.
  void release();

 private:
  struct Tensor {
    c10::ScalarType dtype;
    Dims sizes;  // this rank's
  };
  struct Parameter {
    size_t index;                        // in the group
    std::vector<Tensor> tensors;         // known since the first gather
    size_t first = 0;                    // of them, in the memory
    bool is_made = false;                // its leaf is there
    std::vector<c10::Storage> storages;  // beside the memory
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
  bool are_known_ = false;   // the tensors' sizes
  bool have_memory_ = true;  // the storages
};

}  // namespace shardwise
