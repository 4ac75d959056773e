// ops/register.cpp: registers every operator family once, when the library loads.
#include "ops/families.h"
#include "ops/sparse/sparse.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/tensor/sparse.h"

namespace shardwise {
namespace {

/// Compositions that make no plain tensor between their parts. They read only the type or shape of an argument, or take one tensor only.
constexpr std::string_view kCompositesWithoutPlain[] = {
    "aten::type_as", "aten::expand_as",  "aten::view_as", "aten::reshape_as", "aten::to",
    "aten::reshape", "aten::flatten",    "aten::chunk",   "aten::contiguous", "aten::softmax",
    "aten::dropout", "aten::layer_norm", "aten::square"};

/// Fills the rule table, registers our own kernels and then dispatch itself.
void register_operators() {
#define SHARDWISE_REGISTER_FAMILY(family) register_##family(RuleTable::global());
  SHARDWISE_OPERATOR_FAMILIES(SHARDWISE_REGISTER_FAMILY)
#undef SHARDWISE_REGISTER_FAMILY
  register_dispatch();
  register_composites(kCompositesWithoutPlain);
  at_first_sparse(&register_sparse);
  register_view_replay();
  register_forward_mode();
}

[[maybe_unused]] const bool registered = (register_operators(), true);

}  // namespace

}  // namespace shardwise
