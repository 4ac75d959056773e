#include "wrappers/distributed_embedding/step_facts.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/digest.h"
#include "text/check.h"

#include <algorithm>

namespace shardwise {
namespace {

constexpr int64_t kMask = (int64_t{1} << 31) - 1;  // words of messages may be int32

enum GradientKind : int64_t { kNone, kDense, kSparse, kFused };  // kFused + k: fused optimizer of kind k

int64_t kind_of(const GradientSink& sink, const at::Tensor& table) {
  if (!table.requires_grad()) return kNone;
  if (sink.optimizer) return kFused + static_cast<int64_t>(sink.optimizer->options().method);
  return sink.is_sparse ? kSparse : kDense;
}

std::string words(int64_t kind) {
  if (kind == kNone) return "requires no gradient";
  if (kind < kFused) return kind == kDense ? "has a dense gradient" : "has a sparse gradient";
  return fmt::format("has a fused optimizer, {},", to_string(static_cast<RowOptimizer::Method>(kind - kFused)));
}

}  // namespace

OwnFacts::OwnFacts(std::shared_ptr<LookupCounts> of, const std::vector<GradientSink>& sinks,
                   const std::vector<at::Tensor>& tables)
    : counts(std::move(of)) {
  Digest digest;
  for (size_t t = 0; t < sinks.size(); ++t) {
    gradients.push_back(kind_of(sinks[t], tables[t]));
    digest.add(gradients.back());
  }
  facts = {counts->n_started & kMask, counts->n_waited & kMask, digest.value() & kMask};
}

void check_alike(const TableLanes& lanes, const std::vector<StepFacts>& all, const OwnFacts& own) {
  const auto other = std::ranges::find_if(all, [&](const StepFacts& facts) { return facts != all[0]; });
  if (other == all.end()) return;
  own.counts->n_waited = own.counts->n_started;
  const Group& group = *lanes.mesh->group();
  const int64_t first = group.ranks[0], rank = group.ranks[static_cast<size_t>(other - all.begin())];
  const auto is_same = [&](auto member) { return (*other).*member == all[0].*member; };
  SW_CHECK_VALUE(is_same(&StepFacts::number) && is_same(&StepFacts::n_waited),
                 "[{}] rank {} started {} lookups of this layer and waited for {} earlier ones, but rank {} started {} "
                 "and waited for {}. Call wait() of a lookup on all ranks, or drop the lookup on all ranks.",
                 kLayer, first, all[0].number, all[0].n_waited, rank, other->number, other->n_waited);
  const auto gradients = all_gather_numbers(group, own.gradients);
  for (size_t t = 0; t < lanes.tables.size(); ++t)
    for (size_t i = 1; i < gradients.size(); ++i)
      SW_CHECK_VALUE(gradients[i][t] == gradients[0][t],
                     "[{}] ranks treat table {} differently: it {} on rank {}, and {} on rank {}. Make or close() its "
                     "optimizer, or freeze it, on all ranks.",
                     kLayer, lanes.tables[t].name, words(gradients[0][t]), first, words(gradients[i][t]),
                     group.ranks[i]);
}

}  // namespace shardwise
