// wrappers/distributed_embedding/owner_lookup.h: lookups whose ids are with the tables already: each rank that has columns of a table gets
// the ids of all samples for it, combines their rows, and sends each rank the vectors of its samples.
//
//   owners of tables                                              each rank
//   ids of all samples -> vectors of their columns             -> one message per pair and lane: those of its samples
//   backward: gradients by row, applied                        <- one message per pair and lane: the gradients of its vectors
//
// Samples are dealt to the ranks in their order, evenly; the first ranks have one more where that does not divide. A replicated table gets
// the ids of the rank's own samples.
#pragma once

#include "runtime/comm/agreement.h"
#include "wrappers/distributed_embedding/owner_step.h"
#include "wrappers/distributed_embedding/step_facts.h"

namespace shardwise {

/// Agrees on the number of samples, and on what is wrong with any rank's inputs. `inputs`: by feature; needed where this rank has columns of
/// its table. Collective: one exchange of a few numbers.
/// Throws: on all ranks what is wrong with the first rank's, and c10::ValueError where ranks give different numbers of samples; as check_alike().
OwnerStep start_owner_lookup(const LayerTablesPtr& layer, const std::vector<std::optional<FeatureInput>>& inputs,
                             RankError error, const OwnFacts& own);

/// The result of each feature for this rank's samples; differentiable by `tables`. Collective, the backward too: one exchange each.
std::vector<at::Tensor> combine_at_owners(OwnerStep step, const std::vector<at::Tensor>& tables);

/// Throws: c10::ValueError for a table sharded by rows, whose owners have parts of a sample each.
void check_owners(const TableLanes& lanes);

}  // namespace shardwise
