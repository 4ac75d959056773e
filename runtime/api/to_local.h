// runtime/api/to_local.h: this rank's part of a distributed tensor. Nothing is sent, so one rank may call these alone.
//
// The pieces are aliased, and writes to them count as writes to the tensor: a write after autograd saved the tensor is an error in the
// backward. A copied view's pieces are copies (runtime/tensor/view_link.h): they count for themselves, and nothing is brought back.
// Where its source was written to they are stale, and reading them is an error: c10::ValueError.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

/// This rank's part as it was given: its piece, or an object of a C++ tensor class (runtime/api/local_form.h). Where some rank has not exactly
/// one piece: an object of the class that can hold several. The gradient is taken to be laid out as `grad_placements`, if not as the tensor
/// (where it is Partial: replicated). Moves of a lookup's Partial result do not see writes to this piece: its owners send the rows they looked up.
/// Throws: as to_piece().
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});
/// This rank's piece, of a ragged layout its range, [elements of the flattened dims, *the other dims]; empty (0 elements) on a non-member
/// (runtime/api/outside_mesh.h has an exception).
/// Throws: c10::ValueError where the rank holds several pieces, and where they are stale.
at::Tensor to_piece(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});
/// All pieces, with their history.
std::vector<at::Tensor> to_pieces(const at::Tensor& tensor);
/// All pieces, without history: what is saved. `reader` stands in the error for stale ones.
std::vector<at::Tensor> detached_pieces(const at::Tensor& tensor, const char* reader);

/// The only piece, where it is the whole tensor and lies in memory as stride() says. Throws: c10::ValueError, naming `reader`,
/// where this rank holds less, terms of a sum, or other strides.
at::Tensor whole_piece(const at::Tensor& tensor, const char* reader);

}  // namespace shardwise
