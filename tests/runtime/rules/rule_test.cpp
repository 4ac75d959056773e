#include "runtime/rules/rule.h"

#include "tests/support/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardwise::rule_test {
namespace {

TEST(RuleTest, NotationNamesWhatItReduces) {
  EXPECT_EQ(to_string(Rule("mk,kn->mn")), "mk,kn->mn {k: sum}");
  EXPECT_EQ(to_string(Rule("bmk,bkn->bmn")), "bmk,bkn->bmn {k: sum}");
  EXPECT_EQ(to_string(Rule("ab->ba")), "ab->ba");
  EXPECT_EQ(to_string(Rule("abc->b")), "abc->b {a: sum, c: sum}");
}

TEST(RuleTest, ModifiersArePartOfTheText) {
  EXPECT_EQ(to_string(pointwise().linear()), "pointwise linear");
  EXPECT_EQ(to_string(pointwise().whole("dim")), "pointwise whole(dim)");
  EXPECT_EQ(to_string(reduction(Reduce::kMax)), "reduction max");
}

TEST(RuleTest, TextThatIsNoNotationIsRefused) {
  EXPECT_THROW(Rule("mk,kn"), c10::ValueError);
  EXPECT_THROW(Rule("mK->m"), c10::ValueError);
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

}  // namespace
}  // namespace shardwise::rule_test
