#include "runtime/rules/rule.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <thread>

namespace shardwise::rule_test {
namespace {

TEST(RuleTest, NotationNamesWhatItReduces) {
  EXPECT_EQ(to_string(Rule("mk,kn->mn")), "mk,kn->mn {k: sum}");
  EXPECT_EQ(to_string(Rule("bmk,bkn->bmn")), "bmk,bkn->bmn {k: sum}");
  EXPECT_EQ(to_string(Rule("ab->ba")), "ab->ba");
  EXPECT_EQ(to_string(Rule("abc->b")), "abc->b {a: sum, c: sum}");
  EXPECT_EQ(to_string(Rule("…mk,…k_->…m")), "…mk,…k_->…m {k: sum}");
}

TEST(RuleTest, ModifiersArePartOfTheText) {
  EXPECT_EQ(to_string(pointwise().linear()), "pointwise linear");
  EXPECT_EQ(to_string(pointwise().whole("dim")), "pointwise whole(dim)");
  EXPECT_EQ(to_string(reduction(Reduce::kMax)), "reduction max");
}

TEST(RuleTest, ModifiersMayComeInAnyOrder) {
  EXPECT_TRUE(pointwise().whole("dim").sampled().is_sampled());
  EXPECT_TRUE(pointwise().sampled().whole("dim").is_sampled());
  EXPECT_FALSE(pointwise().whole("dim").is_sampled());
  EXPECT_FALSE(pointwise().whole("dim").linear().is_sampled());
  EXPECT_EQ(to_string(pointwise().whole("dim").linear()), to_string(pointwise().linear().whole("dim")));
}

TEST(RuleTest, ModifiersKeepTheirText) {
  std::string arg = "dim";
  const Rule rule = pointwise().whole(arg.c_str());
  arg = "xyz";
  EXPECT_EQ(to_string(rule), "pointwise whole(dim)");
  run_ranks(2, [&](World&) {
    const OpInfo op(*find_operator("aten::_softmax"));
    const auto spec = spec_of(lay_out(at::ones({4, 3}), make_mesh({2}), {Placement::shard(0)}));
    const std::vector<c10::IValue> args = {at::Tensor(), int64_t{1}, false};
    const Signature signature = rule.signature({op, args, {{spec, spec->sizes()}}, {{Dims(spec->sizes()), {}, {}}}});
    EXPECT_FALSE(signature.factors[0].is_whole);
    EXPECT_TRUE(signature.factors[1].is_whole);
  });
}

TEST(RuleTest, TextThatIsNoNotationIsRefused) {
  EXPECT_THROW(Rule("mk,kn"), c10::ValueError);
  EXPECT_THROW(Rule("mK->m"), c10::ValueError);
  EXPECT_THROW(Rule("m…->m"), c10::ValueError);
}

TEST(RuleTest, AnOperatorHasOneRule) {
  RuleTable table;
  table.add("aten::mm", "mk,kn->mn");
  EXPECT_THROW(table.add("aten::mm", "mk,kn->mn"), c10::ValueError);
  ASSERT_NE(table.find("aten::mm"), nullptr);
  EXPECT_EQ(table.find("aten::bmm"), nullptr);
}

TEST(RuleTest, AnUnknownOperatorHasNoRule) {
  RuleTable table;
  for (const char* op : {"aten::mm.nonsense", "aten::nonsense", "mm"}) {
    try {
      table.add(op, "mk,kn->mn");
      FAIL() << op;
    } catch (const c10::ValueError& error) {
      expect_error(fmt::format("torch has no operator {}.", op), error.what_without_backtrace());
    }
  }
}

TEST(RuleTest, RulesMayBeStatedWhileOthersAreLookedUp) {
  torch::Library library(torch::Library::DEF, "rule_test", std::nullopt, __FILE__, __LINE__);
  constexpr int kCount = 2000;
  const auto name = [](int i) { return fmt::format("rule_test::op{}", i); };
  for (int i = 0; i < kCount; ++i) library.def(fmt::format("op{}(Tensor x) -> Tensor", i).c_str());
  RuleTable table;
  table.add(name(0), "a->a");
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) EXPECT_NE(table.find("rule_test::op0"), nullptr);
  });
  for (int i = 1; i < kCount; ++i) table.add(name(i), "a->a");
  done = true;
  reader.join();
  EXPECT_NE(table.find(name(kCount - 1)), nullptr);
}

}  // namespace
}  // namespace shardwise::rule_test
