#include "runtime/comm/events.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/event_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace shardwise::events_test {
namespace {

TEST(CommTraceTest, WhatWasRecordedBeforeIsNotSeen) {
  add_collective("broadcast", {0, 1}, at::kFloat, 1, 1);  // by no trace
  const CommTrace trace;
  EXPECT_EQ(trace.total_count(), 0);
}

TEST(CommTraceTest, CountsByCollectiveAndAddsBytes) {
  const CommTrace trace;
  add_collective("all_reduce", {0, 1, 2, 3}, at::kFloat, 10, 20);
  add_collective("all_to_all", {0, 1, 2, 3}, at::kFloat, 1, 2);
  add_collective("all_reduce", {0, 1}, at::kFloat, 100, 200);
  EXPECT_EQ(trace.counts(), (std::map<std::string, int64_t>{{"all_reduce", 2}, {"all_to_all", 1}}));
  EXPECT_EQ(trace.bytes_sent(), 111);
  EXPECT_EQ(trace.bytes_received(), 222);
  EXPECT_EQ(trace.events()[2].n_ranks, 2);
}

TEST(CommTraceTest, OuterTraceSeesInnerEvents) {
  const CommTrace outer;
  add_collective("broadcast", {0, 1}, at::kFloat, 0, 1);
  {
    const CommTrace inner;
    add_collective("all_reduce", {0, 1}, at::kFloat, 1, 1);
    EXPECT_EQ(inner.total_count(), 1);
  }
  add_collective("broadcast", {0, 1}, at::kFloat, 0, 1);
  EXPECT_EQ(outer.total_count(), 3);
}

TEST(CommTraceTest, TracesMayCloseInAnyOrder) {
  auto outer = std::make_unique<CommTrace>();
  const CommTrace inner;
  outer.reset();
  add_collective("broadcast", {0, 1}, at::kFloat, 0, 1);
  EXPECT_EQ(inner.total_count(), 1);
}

TEST(CommTraceTest, InnermostScopeNamesTheOperator) {
  const CommTrace trace;
  {
    const CommScope outer("aten::mm");
    {
      const CommScope inner("redistribute", CommScope::Cause::kProgram);
      add_collective("all_to_all", {0, 1}, at::kFloat, 0, 0);
    }
    add_collective("all_reduce", {0, 1}, at::kFloat, 0, 0);
  }
  add_collective("broadcast", {0, 1}, at::kFloat, 0, 0);
  EXPECT_EQ(trace.events()[0].op, "redistribute");
  EXPECT_EQ(trace.events()[1].op, "aten::mm");
  EXPECT_EQ(trace.events()[2].op, "");
}

TEST(CommScopeTest, LayoutsAreTheInnermostScopes) {
  EXPECT_STREQ(CommScope::current_op(), "");
  EXPECT_EQ(CommScope::current_layouts(), "");
  int n_described = 0;
  const auto layouts = [&] { return "asked " + std::to_string(++n_described); };
  const CommScope outer("aten::mm", CommScope::Cause::kOperator, layouts);
  add_collective("broadcast", {0, 1}, at::kFloat, 0, 0);
  EXPECT_EQ(CommScope::current_layouts(), "asked 1");
  {
    const CommScope inner("redistribute", CommScope::Cause::kProgram);
    EXPECT_STREQ(CommScope::current_op(), "redistribute");
    EXPECT_EQ(CommScope::current_layouts(), "");
  }
  EXPECT_EQ(CommScope::current_layouts(), "asked 2");
}

TEST(CommTraceTest, OtherThreadsAreNotSeen) {
  const CommTrace trace;
  std::thread([] { add_collective("broadcast", {0, 1}, at::kFloat, 1, 1); }).join();
  EXPECT_EQ(trace.total_count(), 0);
}

std::vector<std::string> names(const std::vector<OpEvent>& events) {
  std::vector<std::string> result;
  for (const OpEvent& event : events) result.push_back(event.description->op);
  return result;
}

/// An operator that receives `n_bytes`.
void run_operator(const std::string& op, int64_t n_bytes = 0) {
  OpSpan span;
  if (n_bytes > 0) add_collective("all_reduce", {0, 1}, at::kFloat, n_bytes, n_bytes);
  if (span.is_open()) span.end(std::make_shared<OpDescription>(OpDescription{op, "a rule"}));
}

using Names = std::vector<std::string>;

TEST(OpSpanTest, ReadersOfOperatorsSeeThemWithWhatTheySent) {
  EXPECT_FALSE(operators_are_read());
  const EventReader outer(EventReader::kOperators);
  run_operator("aten::mm", 8);
  {
    const CommTrace inner;
    run_operator("aten::add.Tensor", 4);
    EXPECT_EQ(inner.bytes_received(), 4);
    EXPECT_TRUE(inner.operators().empty()) << "it did not ask for operators";
  }
  EXPECT_TRUE(operators_are_read());
  const auto seen = outer.operators();
  EXPECT_EQ(names(seen), (Names{"aten::mm", "aten::add.Tensor"}));
  EXPECT_EQ(seen[0].n_collectives, 1);
  EXPECT_EQ(seen[0].bytes_received, 8);
  EXPECT_LE(seen[0].begin, seen[0].end);
  EXPECT_LE(seen[0].end, seen[1].begin);
}

TEST(OpSpanTest, AKernelIsACompositeIfOtherOperatorsRunWithinIt) {
  const std::string outer_name = "aten::embedding", alone_name = "aten::sort";
  const EventReader reader(EventReader::kOperators);
  {
    const KernelSpan kernel(outer_name);
    run_operator("aten::mm");
    {
      const KernelSpan alone(alone_name);
    }
  }
  EXPECT_EQ(names(reader.operators()), (Names{"aten::mm", "aten::sort", "aten::embedding"}));
  EXPECT_EQ(names(reader.operators(/*with_composites=*/false)), (Names{"aten::mm", "aten::sort"}));
  EXPECT_EQ(reader.n_operators(), 3);
  EXPECT_EQ(reader.n_operators(/*with_composites=*/false), 2);
}

TEST(OpSpanTest, AKernelThatCallsItsOwnOperatorCountsOnce) {
  const std::string name = "aten::matmul";
  const EventReader reader(EventReader::kOperators);
  {
    const KernelSpan above_autograd(name);
    add_collective("all_gather", {0, 1}, at::kFloat, 1, 1);
    run_operator(name, 2);
  }
  const auto seen = reader.operators(/*with_composites=*/false);
  ASSERT_EQ(names(seen), Names{name});
  EXPECT_EQ(seen[0].description->rule, "a rule");
  EXPECT_EQ(seen[0].bytes_received, 3);
}

TEST(OpSpanTest, AnOperatorWhoseReadersCloseWithinItIsNoEvent) {
  auto before = std::make_unique<EventReader>(EventReader::kOperators);
  std::unique_ptr<EventReader> after;
  {
    OpSpan span;
    before->stop();
    after = std::make_unique<EventReader>(EventReader::kOperators);
    span.end(std::make_shared<OpDescription>(OpDescription{"aten::mm", "a rule"}));
  }
  EXPECT_EQ(before->n_operators(), 0);
  EXPECT_EQ(after->n_operators(), 0);
}

}  // namespace
}  // namespace shardwise::events_test
