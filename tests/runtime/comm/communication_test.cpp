#include "runtime/comm/communication.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/events.h"
#include "runtime/comm/messages.h"
#include "runtime/comm/no_messages.h"
#include "tests/support/either_world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace shardwise::communication_test {
namespace {

class DoneWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

class FailedWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*timeout*/) override { throw std::runtime_error("lost"); }
};

const Group kPair{nullptr, {0, 1}, 0};

FlightRecord last_record() { return FlightRecorder::of_thread(0).records().back(); }

template <class Work>
auto gives() {
  return [] { return Communication::WorkPtr(c10::make_intrusive<Work>()); };
}

TEST(CommunicationTest, IsUnderWayUntilItsWait) {
  run_ranks(1, [](World&) {
    const CommTrace trace;
    {
      Communication communication(kPair, {.name = "all_reduce", .bytes_sent = 8, .counted_as = "all_reduce"});
      EXPECT_EQ(trace.total_count(), 0);
      const auto work = communication.launch(gives<DoneWork>());
      EXPECT_EQ(trace.total_count(), 1) << "counted where it was launched";
      EXPECT_EQ(last_record().outcome, FlightRecord::Outcome::kUnderWay);
      EXPECT_EQ(last_record().waits_since, 0U);
      communication.wait(work);
    }
    EXPECT_EQ(last_record().outcome, FlightRecord::Outcome::kDone);
    EXPECT_EQ(trace.total_count(), 1);
    EXPECT_EQ(trace.bytes_sent(), 8);
  });
}

TEST(CommunicationTest, OfAGroupThatSendsNothingIsAnEventAlone) {
  run_ranks(1, [](World&) {
    const GroupPtr planned = without_sending(std::make_shared<const Group>(kPair));
    const size_t n_records = FlightRecorder::of_thread(0).records().size();
    const CommTrace trace;
    Communication(*planned, {.name = "all_reduce", .bytes_sent = 8, .counted_as = "all_reduce"}).run([] {
      ADD_FAILURE();
      return Communication::WorkPtr();
    });
    EXPECT_EQ(trace.total_count(), 1);
    EXPECT_EQ(trace.n_communications(), 1);
    EXPECT_EQ(trace.bytes_sent(), 8);
    EXPECT_FALSE(trace.events()[0].is_sent || trace.events()[0].has_failed);
    EXPECT_EQ(FlightRecorder::of_thread(0).records().size(), n_records);
    EXPECT_EQ(trace.events()[0].call, 1U) << "numbered by itself";
    EXPECT_EQ(without_sending(nullptr), nullptr);
  });
}

TEST(CommunicationTest, WhatIsNotWaitedForOrThrowsHasFailed) {
  run_ranks(1, [](World&) {
    {
      Communication(kPair, {.name = "exchange"}).launch(gives<DoneWork>());
    }
    EXPECT_EQ(last_record().outcome, FlightRecord::Outcome::kFailed);
    const Group other{nullptr, {0, 1}, 0};
    EXPECT_THROW(Communication(other, {.name = "broadcast"}).run(gives<FailedWork>()), std::runtime_error);
    EXPECT_EQ(last_record().outcome, FlightRecord::Outcome::kFailed);
    EXPECT_EQ(last_record().waits_since, 0U);
    {
      Communication(kPair, {.name = "exchange"}).finish();
    }
    EXPECT_EQ(last_record().outcome, FlightRecord::Outcome::kDone);
  });
}

TEST(CommunicationTest, AGroupThatFailedTakesNoMore) {
  run_ranks(1, [](World&) {
    const Group group{nullptr, {0, 1}, 0}, healthy{nullptr, {0, 1}, 0};
    EXPECT_THROW(Communication(group, {.name = "exchange"}).run(gives<FailedWork>()), std::runtime_error);
    const CommScope scope("aten::mm");
    const auto error = [](const Group& group) {
      return error_of<c10::DistBackendError>(
          [&] { Communication(group, {.name = "all_reduce"}).run(gives<DoneWork>()); });
    };
    expect_error(
        "[all_reduce for aten::mm] the group of ranks [0, 1] takes no more messages, because one failed before: lost",
        error(group));
    EXPECT_EQ(error(healthy), "");
  });
}

TEST(CommunicationTest, ARefusedCallLosesNothing) {
  run_ranks(1, [](World&) {
    const Group group{nullptr, {0, 1}, 0};
    const auto refuses = []() -> Communication::WorkPtr { TORCH_CHECK_VALUE(false, "no such dtype"); };
    EXPECT_THROW(Communication(group, {.name = "all_reduce"}).run(refuses), c10::ValueError);
    Communication(group, {.name = "all_reduce"}).run(gives<DoneWork>());
  });
}

TEST(CommunicationTest, AReaderStartsNone) {
  run_ranks(1, [](World&) {
    const Group group{nullptr, {0, 1}, 0};
    {
      const Reading outer("print");
      const Reading inner("to_local");
      const CommScope scope("aten::mm");
      const size_t n_records = FlightRecorder::of_thread(0).records().size();
      expect_error("[print] would have sent all_reduce for aten::mm: a reader starts no message",
                   error_of<c10::Error>([&] { Communication(group, {.name = "all_reduce"}).run(gives<DoneWork>()); }));
      EXPECT_EQ(FlightRecorder::of_thread(0).records().size(), n_records);
    }
    Communication(group, {.name = "all_reduce"}).run(gives<DoneWork>());
  });
}

TEST(CommunicationTest, AForkedProcessSendsNothing) {
  const Group of_parent{nullptr, {0, 1}, 0};
  const pid_t child = ::fork();
  if (child == 0) {
    const auto error = [](const Group& group) {
      return error_of<c10::ValueError>([&] { Communication(group, {.name = "all_reduce"}).run(gives<DoneWork>()); });
    };
    const bool is_refused = error(of_parent).find("this process was forked from a rank") != std::string::npos;
    const bool has_own = error(Group{nullptr, {0, 1}, 0}).empty();
    ::_exit(is_refused && has_own ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Communication(of_parent, {.name = "all_reduce"}).run(gives<DoneWork>());
}

TEST(CommCauseTest, ThePolicysConsentDoesNotAskForAnything) {
  EXPECT_TRUE(comm_thread().program_asks());
  {
    const CommScope scope("aten::mm");
    EXPECT_FALSE(comm_thread().program_asks());
    CommScope::permit();
    EXPECT_EQ(CommScope::current_cause(), CommScope::Cause::kProgram);
    EXPECT_FALSE(comm_thread().program_asks());
    const CommScope inner("aten::mm", CommScope::Cause::kProgram);
    EXPECT_FALSE(comm_thread().program_asks());
  }
  const CommScope scope("redistribute", CommScope::Cause::kProgram);
  EXPECT_TRUE(comm_thread().program_asks());
  const CommScope inner("aten::mm");
  EXPECT_TRUE(comm_thread().program_asks()) << "a part of what was asked for";
}

constexpr int kTimed = EventReader::kCommunications | EventReader::kDetails;

TEST(EventReaderTest, TimesAreInOrderAndAnOuterReaderSeesTheSame) {
  run_ranks(2, [](World& world) {
    const GroupPtr group = everyone(world);
    const EventReader outer(kTimed);
    broadcast(*group, at::ones({2}), 0);
    {
      const EventReader inner(kTimed);
      const auto layouts = [] { return std::string("Float [2] as [Partial(sum)]"); };
      const CommScope scope("aten::mm", CommScope::Cause::kOperator, layouts);
      all_reduce(*group, at::ones({2}), Reduce::kSum);
      ASSERT_EQ(inner.n_communications(), 1);
      EXPECT_EQ(outer.n_communications(), 2);
    }
    const auto all = outer.communications();
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0].collective, "broadcast");
    EXPECT_TRUE(all[0].is_asked_for);
    EXPECT_EQ(all[1].collective, "all_reduce");
    EXPECT_EQ(all[1].op, "aten::mm");
    EXPECT_EQ(all[1].layouts, "Float [2] as [Partial(sum)]");
    EXPECT_FALSE(all[1].is_asked_for);
    EXPECT_EQ(all[1].ranks, (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(all[1].call, all[0].call + 1);
    EXPECT_LE(all[0].begin, all[0].end);
    EXPECT_LE(all[0].end, all[1].begin);
    for (const CommEvent& each : all) EXPECT_LE(each.waited, each.end - each.begin + 1000);
  });
}

TEST(EventReaderTest, WhatBeginsInItIsItsOwnWheneverItEnds) {
  run_ranks(2, [](World& world) {
    const GroupPtr group = everyone(world);
    const auto n_exchanges = [](const EventReader& profile) {
      const auto all = profile.communications();
      return std::ranges::count_if(all, [](const auto& each) { return each.collective != "connect"; });
    };
    const EventReader around(kTimed);
    EventReader profile(kTimed);
    const int64_t other = 1 - world.rank();
    const auto messages = exchange(*group, at::kCPU, {{other, at::ones({2})}}, {{other, at::empty({2})}});
    profile.stop();
    EXPECT_EQ(n_exchanges(profile), 0);
    const EventReader later(kTimed);
    messages->wait();
    EXPECT_EQ(n_exchanges(profile), 1);
    EXPECT_EQ(n_exchanges(around), 1);
    EXPECT_EQ(n_exchanges(later), 0);
  });
}

}  // namespace
}  // namespace shardwise::communication_test
