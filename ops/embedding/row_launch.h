// ops/embedding/row_launch.h: the kernels of kernels/ where the memory is: shared out over threads on the CPU, on the current stream of a GPU.
//
// For a GPU's memory they are there in builds with CUDA; others say so.
#pragma once

#include "kernels/bag_pool.h"
#include "kernels/id_groups.h"
#include "kernels/row_lookup.h"
#include "kernels/row_norms.h"
#include "kernels/row_sums.h"
#include "kernels/row_updates.h"

#include <c10/core/Device.h>

#include <functional>

namespace shardwise::launch {

/// True where there are kernels for memory of `device`.
bool has_kernels(c10::Device device);

/// Calls `part(begin, end)` for parts of [0, n) on several threads; `cost`: bytes per item.
void share_out(int64_t n, int64_t cost, const std::function<void(int64_t, int64_t)>& part);

void look_up(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, kernels::Miss miss, void* results,
             int64_t result_step);
kernels::IdRange range_of(c10::Device device, const kernels::Ids& ids);
uint64_t digest_of(c10::Device device, const kernels::Ids& ids);

/// Words of GroupMemory::scratch.
int64_t group_scratch(c10::Device device, int64_t n_ids);
int64_t group_ids(c10::Device device, const kernels::Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped,
                  const kernels::GroupMemory& memory);

/// Groups in device memory, as group_ids() made them of `n_ids` ids.
struct Groups {
  const int64_t* order;
  const int64_t* starts;
  const int64_t* rows;
  int64_t n;
  int64_t n_ids;
};
/// Into `results` [groups, width].
void sum_groups(c10::Device device, const kernels::GradRows& grads, const Groups& groups, void* results);
/// Into the rows that the groups name of `results` [n_rows, width], whose other rows become zeros.
void sum_rows(c10::Device device, const kernels::GradRows& grads, const Groups& groups, void* results, int64_t n_rows);
void grad_squares(c10::Device device, const kernels::GradRows& grads, const Groups& groups, double* results);
void update_rows(c10::Device device, const kernels::Rows& table, const kernels::RowState& state,
                 const kernels::RowUpdate& update, const kernels::GradRows& grads, const Groups& groups,
                 const double* mean_squares);

void pool(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, const kernels::Bags& bags,
          kernels::Pooling pooling, double none, void* results, int64_t* chosen);
void spread_bags(c10::Device device, const kernels::Bags& bags, const kernels::Ids& ids, kernels::Pooling pooling,
                 kernels::Element element, int64_t* bag_of, void* factors);
void dot_rows(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, int64_t padding,
              const kernels::GradRows& grads, void* results);

void row_powers(c10::Device device, const kernels::Rows& table, const int64_t* rows, int64_t n, double p,
                double* results);
void shorten_rows(c10::Device device, const kernels::Rows& table, const int64_t* rows, int64_t n, double p,
                  double max_norm, const double* powers);

}  // namespace shardwise::launch
