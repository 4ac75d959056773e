// kernels/cuda/kernels.h: the kernels of kernels/ on a GPU. They are documented at the CPU kernels of the same names.
//
// All pointers are to device memory, including those in Rows, Ids, Bags and GradRows. `stream` is a cudaStream_t of the current device.
// Calls return before the work is done, except group_ids(); empty work launches nothing. Sums have a fixed order, so results are the same
// on every run, but not bit-identical to the CPU's. Memory accesses are 16 bytes wide if addresses, widths and steps are multiples of 16
// bytes; otherwise one element.
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

/// `range` is in device memory.
void range_of(const Ids& ids, IdRange* range, void* stream);
/// An id outside [0, n_rows) fails a device assertion, as in torch's own lookups. All later CUDA calls of the process then return errors.
void check_rows(const Ids& ids, int64_t n_rows, void* stream);
void digest_of(const Ids& ids, uint64_t* digest, void* stream);

/// The number of words of GroupMemory::scratch for `n_ids` ids: a little more than two per id.
int64_t group_scratch(int64_t n_ids);

/// Waits for the stream, because it returns the number of groups to the host.
int64_t group_ids(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped, const GroupMemory& memory,
                  void* stream);

/// The result of group_ids() for `n_ids` ids.
struct Groups {
  const int64_t* order;
  const int64_t* starts;
  int64_t n;
  int64_t n_ids;
};

/// The number of bytes of `scratch` (16-byte aligned) that sums of groups need: 24 per id, and 1/64 of the gradients in float (double).
/// Many warps sum the gradients of an id that occurs very often; a second kernel adds up their partial sums.
int64_t sum_scratch(const GradRows& grads, int64_t n_ids);

/// Fills memory with zeros, before sum_groups() writes some of its rows.
void clear(void* memory, int64_t n_bytes, void* stream);

/// Writes group g's sum to row `rows[g]`, or to row g if `rows` is null. Rows are `result_step` elements apart.
void sum_groups(const GradRows& grads, const Groups& groups, const int64_t* rows, void* results, int64_t result_step,
                void* scratch, void* stream);

void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  double* results, void* scratch, void* stream);
void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  const RowTotals& totals, double* results, void* scratch, void* stream);

/// `pieces` are in host memory; `pieces_there` are the same in device memory, needed if there are several.
void update_rows(const UpdatedPiece* pieces, const UpdatedPiece* pieces_there, int64_t n_pieces, const GradRows& grads,
                 const Groups& groups, const int64_t* rows, const RowTotals& totals, void* scratch, void* stream);

void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none, void* results,
          int64_t* chosen, void* stream);

void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 void* stream);

void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, void* stream);

void pack_rows(const Rows& table, const float* ranges, void* packed, void* stream);
void look_up_packed(const PackedRows& table, const Ids& ids, Miss miss, Element element, void* results,
                    int64_t result_step, void* stream);
void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none,
                 Element element, void* results, int64_t* chosen, void* stream);

/// For the `n` rows at `rows`.
void row_powers(const Rows& table, const int64_t* rows, int64_t n, double p, double* results, void* stream);
void shorten_rows(const Rows& table, const int64_t* rows, int64_t n, double p, double max_norm, const double* powers,
                  void* stream);

}  // namespace shardwise::kernels::cuda
