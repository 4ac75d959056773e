// runtime/api/to_local.h: this rank's part of a distributed tensor. Nothing is sent, so a single rank may call these functions.
//
// The pieces are aliased, and a write to a piece counts as a write to the tensor: a write after autograd saved the tensor is an error in
// the backward. The pieces of a copied view are copies (runtime/tensor/view_link.h): a write to one counts for the piece only and is not
// copied back. After a write to the view's source they are stale, and reading them is an error: c10::ValueError.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

/// This rank's part in the form in which it was given: its piece, or an object of a C++ tensor class (runtime/api/local_form.h). If some
/// rank has several pieces or none, the result is an object of the class that can hold them. The gradient is taken to have
/// `grad_placements`; by default those of the tensor, with Replicate in place of Partial. A lookup's Partial result does not see writes to
/// this piece when it is moved: the owners send the rows they looked up.
/// Throws: as to_piece().
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});
/// This rank's piece. In a ragged layout this is the rank's range, [elements of the flattened dims, *the other dims]. A non-member gets an
/// empty piece (0 elements; for an exception see AnswersOutside).
/// Throws: c10::ValueError if the rank holds several pieces, or if they are stale.
at::Tensor to_piece(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});
/// All pieces, with their autograd history.
std::vector<at::Tensor> to_pieces(const at::Tensor& tensor);
/// All pieces, without autograd history, as a checkpoint saves them. `reader` is named in the error for stale pieces.
std::vector<at::Tensor> detached_pieces(const at::Tensor& tensor, const char* reader);

/// The only piece, if it is the whole tensor and has the strides of stride(). Throws: c10::ValueError, naming `reader`, if this rank holds
/// only a part, a Partial term, or other strides.
at::Tensor whole_piece(const at::Tensor& tensor, const char* reader);

/// A process-wide switch, off by default, that must be the same on all ranks. On: a rank outside the mesh behaves as in
/// torch.distributed.tensor. equal() returns what the members found, and all ranks of the world take part in it; to_local() of a 0-dim
/// tensor returns a zero. Off: equal() is an error there and to_local() returns an empty tensor, so no value is used that nobody computed.
class AnswersOutside {
 public:
  static void set(bool are_on);
  static bool are_on();
};

}  // namespace shardwise
