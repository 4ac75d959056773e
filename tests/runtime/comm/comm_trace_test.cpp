#include "runtime/comm/comm_trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace shardwise::comm_trace_test {
namespace {

TEST(CommTraceTest, WhatWasRecordedBeforeIsNotSeen) {
  CommTrace::record("broadcast", 2, 1, 1);  // by no trace
  const CommTrace trace;
  EXPECT_EQ(trace.total_count(), 0);
}

TEST(CommTraceTest, CountsByCollectiveAndAddsBytes) {
  const CommTrace trace;
  CommTrace::record("all_reduce", 4, 10, 20);
  CommTrace::record("all_to_all", 4, 1, 2);
  CommTrace::record("all_reduce", 2, 100, 200);
  EXPECT_EQ(trace.counts(), (std::map<std::string, int64_t>{{"all_reduce", 2}, {"all_to_all", 1}}));
  EXPECT_EQ(trace.bytes_sent(), 111);
  EXPECT_EQ(trace.bytes_received(), 222);
  EXPECT_EQ(trace.events()[2].n_ranks, 2);
}

TEST(CommTraceTest, OuterTraceSeesInnerEvents) {
  const CommTrace outer;
  CommTrace::record("broadcast", 2, 0, 1);
  {
    const CommTrace inner;
    CommTrace::record("all_reduce", 2, 1, 1);
    EXPECT_EQ(inner.total_count(), 1);
  }
  CommTrace::record("broadcast", 2, 0, 1);
  EXPECT_EQ(outer.total_count(), 3);
}

TEST(CommTraceTest, TracesMayCloseInAnyOrder) {
  auto outer = std::make_unique<CommTrace>();
  const CommTrace inner;
  outer.reset();
  CommTrace::record("broadcast", 2, 0, 1);
  EXPECT_EQ(inner.total_count(), 1);
}

TEST(CommTraceTest, InnermostScopeNamesTheOperator) {
  const CommTrace trace;
  {
    const CommScope outer("aten::mm");
    {
      const CommScope inner("redistribute", CommScope::Cause::kProgram);
      CommTrace::record("all_to_all", 2, 0, 0);
    }
    CommTrace::record("all_reduce", 2, 0, 0);
  }
  CommTrace::record("broadcast", 2, 0, 0);
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
  CommTrace::record("broadcast", 2, 0, 0);
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
  std::thread([] { CommTrace::record("broadcast", 2, 1, 1); }).join();
  EXPECT_EQ(trace.total_count(), 0);
}

}  // namespace
}  // namespace shardwise::comm_trace_test
