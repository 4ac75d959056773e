// wrappers/distributed_embedding/owner_lookup.h: lookups whose ids are passed to the owners of the tables. Each rank that has columns of a table gets
// the ids of all samples for it, combines their rows, and sends each rank the vectors of its samples.
//
//   owners of tables                                              each rank
//   ids of all samples -> vectors of their columns             -> messages to each rank: the vectors of its samples
//   backward: gradients by row, applied                        <- messages to each owner: the gradients of its vectors
//
// Samples are split evenly over the ranks, in order; if that does not divide, the first ranks have one more. A replicated table gets the ids of the
// rank's own samples.
#pragma once

#include "runtime/comm/agreement.h"
#include "wrappers/distributed_embedding/owner_step.h"
#include "wrappers/distributed_embedding/step_facts.h"

namespace shardwise {

/// Agrees on the number of samples, and on errors in any rank's inputs. `inputs`: by feature; needed if this rank has columns of its table.
/// Collective: one exchange of a few numbers.
/// Throws: on all ranks the error of the first rank that has one; c10::ValueError if ranks pass different numbers of samples; as check_alike().
OwnerStep start_owner_lookup(const LayerTablesPtr& layer, const std::vector<std::optional<FeatureInput>>& inputs,
                             RankError error, const OwnFacts& own);

/// The result of each feature for this rank's samples; differentiable by `tables`. Collective, the backward too: one exchange each.
std::vector<at::Tensor> combine_at_owners(OwnerStep step, const std::vector<at::Tensor>& tables);

/// Throws: c10::ValueError for a table sharded by rows, because each of its owners has only some of a sample's rows.
void check_owners(const TableLanes& lanes);

}  // namespace shardwise
