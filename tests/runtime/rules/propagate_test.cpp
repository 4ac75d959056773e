#include "runtime/rules/propagate.h"

#include "runtime/api/dtensor.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace shardwise::propagate_test {
namespace {

struct Chosen {
  std::vector<std::string> inputs;
  std::string output;
  bool operator==(const Chosen&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Chosen& chosen) {
  return out << fmt::format("{} -> {}", fmt::join(chosen.inputs, " "), chosen.output);
}

/// What mm of [6, 4] and [4, 5] does with these placements, as text; "" where an input stays.
Chosen choose_mm(const MeshPtr& mesh, Placements left, Placements right) {
  const OpInfo op(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", ""));
  const auto a = Spec::intern(mesh, {6, 4}, std::move(left), {4, 1}, at::kFloat);
  const auto b = Spec::intern(mesh, {4, 5}, std::move(right), {5, 1}, at::kFloat);
  OpCall call{op, {}, {{a, a->sizes(), 0}, {b, b->sizes(), 1}}, {{{6, 5}, {5, 1}, at::kFloat}}};
  const auto result = propagate(call, Rule("mk,kn->mn").multilinear().signature(call));
  Chosen chosen;
  for (const SpecPtr& spec : result->inputs) chosen.inputs.push_back(spec ? to_string(spec->placements()) : "");
  chosen.output = to_string(result->outputs[0]->placements());
  return chosen;
}

const Placement kR = Placement::replicate();
const Placement kP = Placement::partial();
Placement s(int64_t dim) { return Placement::shard(dim); }

TEST(PropagateTest, FittingInputsStayWhereTheyAre) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    EXPECT_EQ(choose_mm(mesh, {kR}, {kR}), (Chosen{{"", ""}, "[Replicate()]"}));
    EXPECT_EQ(choose_mm(mesh, {s(0)}, {kR}), (Chosen{{"", ""}, "[Shard(0)]"}));
    EXPECT_EQ(choose_mm(mesh, {kR}, {s(1)}), (Chosen{{"", ""}, "[Shard(1)]"}));
    EXPECT_EQ(choose_mm(mesh, {s(1)}, {s(0)}), (Chosen{{"", ""}, "[Partial(sum)]"}));
    EXPECT_EQ(choose_mm(mesh, {kP}, {kR}), (Chosen{{"", ""}, "[Partial(sum)]"}));
  });
}

TEST(PropagateTest, TheCheapestMoveWins) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    // The replicated right side is sliced for nothing.
    EXPECT_EQ(choose_mm(mesh, {s(1)}, {kR}), (Chosen{{"", "[Shard(0)]"}, "[Partial(sum)]"}));
    // Moving a shard costs (n-1)/n^2 of a matrix, gathering (n-1)/n.
    EXPECT_EQ(choose_mm(mesh, {s(0)}, {s(0)}), (Chosen{{"[Shard(1)]", ""}, "[Partial(sum)]"}));
    // Two Partials cannot be multiplied: the smaller is summed, the other passes.
    EXPECT_EQ(choose_mm(mesh, {kP}, {kP}).output, "[Partial(sum)]");
  });
}

TEST(PropagateTest, WeightsAreNotGatheredToPassAPartialOn) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({4});
    // Gathering the right side moves fewer bytes than summing the left one, which would have to be summed after all.
    EXPECT_EQ(choose_mm(mesh, {kP}, {s(1)}), (Chosen{{"[Replicate()]", ""}, "[Shard(1)]"}));
    EXPECT_EQ(choose_mm(mesh, {kP}, {s(0)}), (Chosen{{"[Shard(1)]", ""}, "[Partial(sum)]"}));
  });
}

TEST(PropagateTest, UnevenCutsAreFollowed) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    EXPECT_EQ(choose_mm(mesh, {Placement::shard(0, {1, 0, 5})}, {kR}),
              (Chosen{{"", ""}, "[Shard(0, sizes=[1, 0, 5])]"}));
    EXPECT_EQ(choose_mm(mesh, {Placement::shard(1, {0, 3, 1})}, {s(0)}),
              (Chosen{{"", "[Shard(0, sizes=[0, 3, 1])]"}, "[Partial(sum)]"}));
  });
}

TEST(PropagateTest, MeshDimsChooseIndependentlyAndNest) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    EXPECT_EQ(choose_mm(mesh, {s(0), kR}, {kR, s(1)}), (Chosen{{"", ""}, "[Shard(0), Shard(1)]"}));
    EXPECT_EQ(choose_mm(mesh, {s(0), s(0)}, {kR, kR}), (Chosen{{"", ""}, "[Shard(0), Shard(0)]"}));
    EXPECT_EQ(choose_mm(mesh, {s(0), s(1)}, {kR, s(0)}), (Chosen{{"", ""}, "[Shard(0), Partial(sum)]"}));
  });
}

TEST(PropagateTest, OperandsOnDifferentMeshesAreRefused) {
  run_ranks(2, [](World&) {
    const auto here = make_mesh({2}), there = make_mesh({2}, {1, 0});
    const at::Tensor a = lay_out(at::ones({2, 2}), here, {kR});
    const at::Tensor b = lay_out(at::ones({2, 2}), there, {kR});
    try {
      at::add(a, b);
      FAIL();
    } catch (const c10::Error& error) {
      expect_error("[aten::add.Tensor] operands live on different meshes: (2) and (2: ranks [1, 0])",
                   error.what_without_backtrace());
    }
  });
}

}  // namespace
}  // namespace shardwise::propagate_test
