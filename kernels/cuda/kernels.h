// kernels/cuda/kernels.h: the kernels of kernels/ on a GPU. They are documented at the CPU kernels of the same names.
//
// All pointers are to device memory, including those in Rows, Ids, Bags, GradRows and Groups. `stream` is a cudaStream_t of the current
// device. Calls return before the work is done, except group_ids(); empty work launches nothing. Sums have a fixed order, so results are
// the same on every run, but not bit-identical to the CPU's. Memory accesses are 16 bytes wide if addresses, widths and steps are multiples
// of 16 bytes; otherwise one element.
//
// Throws std::runtime_error if CUDA refuses a launch. CUDA reports errors inside a kernel at the next call that waits.
#pragma once

#include "kernels/bag_pool.h"
#include "kernels/id_groups.h"
#include "kernels/packed_rows.h"
#include "kernels/row_lookup.h"
#include "kernels/row_norms.h"
#include "kernels/row_sums.h"
#include "kernels/row_updates.h"

namespace shardwise::kernels::cuda {

void look_up(const Rows& table, const Ids& ids, Miss miss, void* results, int64_t result_step, void* stream);
void look_up_packed(const PackedRows& table, const Ids& ids, Element element, void* results, int64_t result_step,
                    void* stream);
void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results, int64_t* chosen,
          void* stream);
void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling, Element element,
                 void* results, int64_t* chosen, void* stream);
void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 void* stream);
void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, void* stream);

/// For the `n` rows at `rows`.
void row_powers(const Rows& table, const int64_t* rows, int64_t n, double p, double* results, void* stream);
void shorten_rows(const Rows& table, const int64_t* rows, int64_t n, double p, double max_norm, const double* powers,
                  void* stream);

/// An id outside [0, n_rows) fails a device assertion, as in torch's own lookups. All later CUDA calls of the process then return errors.
void check_rows(const Ids& ids, int64_t n_rows, void* stream);
void digest_of(const Ids& ids, uint64_t* digest, void* stream);

/// The number of words of GroupMemory::scratch for `n_ids` ids: a little more than two per id.
int64_t group_scratch(int64_t n_ids);

/// Waits for the stream, because it returns the number of groups to the host.
int64_t group_ids(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped, const GroupMemory& memory,
                  void* stream);

/// The number of bytes of `scratch` (16-byte aligned) that sums of groups need: 24 per id, and 1/64 of the gradients in float (double).
/// Many warps sum the gradients of an id that occurs very often; a second kernel adds up their partial sums.
int64_t sum_scratch(const GradRows& grads, int64_t n_ids);

void sum_groups(const GradRows& grads, const Groups& groups, void* results, void* scratch, void* stream);
/// Writes no other rows.
void sum_rows(const GradRows& grads, const Groups& groups, const int64_t* rows, void* results, void* scratch,
              void* stream);
void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  double* results, void* scratch, void* stream);
void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  const RowTotals& totals, double* results, void* scratch, void* stream);
void update_rows(const UpdatedPieces& pieces, const GradRows& grads, const Groups& groups, const int64_t* rows,
                 const RowTotals& totals, void* scratch, void* stream);

}  // namespace shardwise::kernels::cuda

namespace shardwise::kernels {

// Overloads of the CPU's kernels, so that one call serves both devices: run_parts() of ops/embedding/kernel_launch.h.
using cuda::dot_rows, cuda::grad_squares, cuda::lamb_squares, cuda::look_up, cuda::look_up_packed, cuda::pool,
    cuda::pool_packed, cuda::spread_bags, cuda::sum_groups, cuda::sum_rows, cuda::update_rows;

}  // namespace shardwise::kernels
