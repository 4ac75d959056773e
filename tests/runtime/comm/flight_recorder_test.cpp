#include "runtime/comm/flight_recorder.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/messages.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string_view>
#include <thread>

namespace shardwise::flight_recorder_test {
namespace {

using Json = nlohmann::json;

Group pair_of(int64_t index) { return {nullptr, {0, 7}, index}; }

FlightRecorder::Begun begin(FlightRecorder& recorder, const Group& group, const CommCall& call) {
  return recorder.begin(comm_thread(), group, call);
}

TEST(FlightRecorderTest, TheLastThousandStayInOrder) {
  const auto recorder = std::make_unique<FlightRecorder>(7);
  for (int64_t i = 1; i <= 2500; ++i)
    EXPECT_EQ(begin(*recorder, pair_of(1), {.name = "all_reduce", .bytes_sent = i}).number, static_cast<uint64_t>(i));
  const auto records = recorder->records();
  ASSERT_EQ(records.size(), FlightRecorder::kRecords);
  const uint64_t first = 2500 - FlightRecorder::kRecords + 1;
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].number, first + i);
    EXPECT_EQ(records[i].call, first + i);
    EXPECT_EQ(records[i].bytes_sent, static_cast<int64_t>(first + i));
  }
  EXPECT_FALSE(recorder->find(first - 1));
  EXPECT_EQ(recorder->find(2500)->bytes_sent, 2500);
}

TEST(FlightRecorderTest, GroupsCountOnTheirOwn) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  for (int i = 0; i < 3; ++i) begin(*recorder, pair_of(0), {.name = "broadcast"});
  EXPECT_EQ(begin(*recorder, {nullptr, {0, 1, 2}, 0}, {.name = "broadcast"}).call, 1U);
  EXPECT_EQ(begin(*recorder, pair_of(0), {.name = "exchange", .by_all = false}).call, 0U);
  ASSERT_EQ(recorder->groups().size(), 2U);
  EXPECT_EQ(recorder->groups()[0]->ranks, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(recorder->groups()[0]->n_calls, 3U);
  EXPECT_EQ(recorder->groups()[1]->n_calls, 1U);
}

TEST(FlightRecorderTest, AnEndThatComesAfterAThousandOthersChangesNone) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  const auto first = begin(*recorder, pair_of(0), {.name = "exchange"});
  FlightRecorder::Begun last{};
  for (uint64_t i = 0; i < FlightRecorder::kRecords; ++i) last = begin(*recorder, pair_of(0), {.name = "broadcast"});
  FlightRecorder::set_waiting(first, last.begin + 1);
  FlightRecorder::set_ended(first, last.begin + 1, /*is_done=*/false);
  EXPECT_TRUE(recorder->waits().empty());
  EXPECT_EQ(recorder->find(last.number)->outcome, FlightRecord::Outcome::kUnderWay);
}

TEST(FlightRecorderTest, OperatorsOfEveryLengthAreKeptOrLoseTheirEnd) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  for (size_t length = 0; length < 2 * FlightRecord::kOpBytes; ++length) {
    const std::string name(length, 'x');
    const CommScope scope(name.c_str());
    const auto begun = begin(*recorder, pair_of(0), {.name = "broadcast", .dtype = at::kHalf});
    const auto record = *recorder->find(begun.number);
    EXPECT_EQ(std::string(record.op.data()), name.substr(0, FlightRecord::kOpBytes - 1));
    EXPECT_FALSE(record.is_asked_for);
    EXPECT_EQ(record.dtype, static_cast<int8_t>(at::kHalf));
  }
  const auto begun = begin(*recorder, pair_of(0), {.name = "broadcast"});
  EXPECT_TRUE(recorder->find(begun.number)->is_asked_for);
  EXPECT_EQ(recorder->find(begun.number)->dtype, -1);
}

// What a reader sees is what one writer wrote, however often the ring goes round meanwhile.
TEST(FlightRecorderTest, ReadersSeeWholeRecordsWhileOthersWrite) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer)
    writers.emplace_back([&, group = Group{nullptr, {0, 1 + writer}, 0}] {
      while (!is_over) {
        const auto begun = begin(*recorder, group, {.name = "all_reduce"});
        FlightRecorder::set_ended(begun, begun.begin + 100, /*is_done=*/true);
      }
    });
  size_t n_seen = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((n_seen < 20000 || recorder->records().back().number < 10 * FlightRecorder::kRecords) &&
         std::chrono::steady_clock::now() < deadline)
    for (const FlightRecord& record : recorder->records()) {
      ++n_seen;
      EXPECT_STREQ(record.name, "all_reduce");
      EXPECT_EQ(record.group->ranks.size(), 2U);
      const uint64_t length = record.end - record.begin;
      EXPECT_TRUE(record.end == 0 || length == 100 || length == 101) << length;
    }
  is_over = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_GE(n_seen, 20000U);
}

/// True if the process ends within a minute; otherwise it is killed.
bool ends(pid_t child) {
  for (int i = 0; i < 6000; ++i) {
    if (::waitpid(child, nullptr, WNOHANG) == child) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return false;
}

TEST(FlightRecorderTest, AForkedProcessReadsWhatAnotherThreadWasReading) {
  run_ranks(4, [](World&) { FlightRecorder::of_thread(0); });
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) FlightRecorder::all();
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      FlightRecorder::all();
      ::_exit(0);
    }
    const bool has_ended = ends(child);
    EXPECT_TRUE(has_ended) << "process " << i;
    if (!has_ended) break;
  }
  is_over = true;
  reader.join();
}

TEST(FlightRecorderTest, EveryCommunicationOfARankIsThere) {
  run_ranks(3, [](World& world) {
    const GroupPtr group = everyone(world);
    FlightRecorder& recorder = FlightRecorder::of_thread(world.rank());
    EXPECT_TRUE(recorder.records().empty()) << "of an earlier world";
    {
      const CommScope scope("aten::mm");
      all_reduce(*group, at::ones({2}), Reduce::kSum);
    }
    broadcast(*group, at::ones({4}), 1);
    all_gather_numbers(*group, {1, 2});
    const bool sends = world.rank() == 0, receives = world.rank() == 2;
    auto messages =
        exchange(*group, at::kCPU, sends ? std::vector<Message>{{2, at::ones({2})}} : std::vector<Message>{},
                 receives ? std::vector<Message>{{0, at::ones({2})}} : std::vector<Message>{});
    EXPECT_EQ(recorder.records().back().end == 0, sends || receives) << "messages end where they are waited for";
    messages->wait();
    auto records = recorder.records();
    std::erase_if(records, [](const FlightRecord& record) { return std::string(record.name) == "connect"; });
    const std::vector<std::string> names{"all_reduce", "broadcast", "all_gather", "exchange"};
    ASSERT_EQ(records.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(records[i].name, names[i]);
      EXPECT_GE(records[i].call, i + 1);
      EXPECT_EQ(records[i].group->ranks, (std::vector<int64_t>{0, 1, 2}));
      EXPECT_EQ(records[i].outcome, FlightRecord::Outcome::kDone);
      EXPECT_EQ(records[i].waits_since, 0U);
      EXPECT_GE(records[i].end, records[i].begin);
    }
    EXPECT_STREQ(records[0].op.data(), "aten::mm");
    EXPECT_FALSE(records[0].is_asked_for);
    EXPECT_TRUE(records[1].is_asked_for);
    EXPECT_EQ(records[1].bytes_received, world.rank() == 1 ? 0 : 16);
    EXPECT_EQ(records[3].bytes_sent, sends ? 8 : 0);
  });
}

TEST(FlightRecorderTest, AFailedCommunicationSaysSo) {
  std::array<FlightRecord::Outcome, 2> outcomes{};
  error_of_ranks(2, [&](World& world) {
    const GroupPtr group = everyone(world);
    try {
      if (world.rank() == 0)
        broadcast(*group, at::ones({2}), 0);
      else
        all_reduce(*group, at::ones({2}), Reduce::kSum);
    } catch (...) {
      outcomes[world.rank()] = FlightRecorder::of_thread(world.rank()).records().back().outcome;
      throw;
    }
  });
  EXPECT_EQ(outcomes[0], FlightRecord::Outcome::kFailed);
  EXPECT_EQ(outcomes[1], FlightRecord::Outcome::kFailed);
}

TEST(FlightDumpTest, ARankThatWaitsIsSeenFromAnotherThread) {
  std::vector<Json> dumps;
  run_ranks(2, [&](World& world) {
    const GroupPtr group = everyone(world);
    broadcast(*group, at::ones({2}), 0);
    if (world.rank() == 0) {
      const CommScope scope("aten::mm");
      all_reduce(*group, at::ones({2}), Reduce::kSum);
      return;
    }
    const auto is_seen = [] {
      for (const FlightRecorder* recorder : FlightRecorder::all())
        if (recorder->is_thread() && recorder->rank() == 0)
          return std::ranges::any_of(
              recorder->waits(), [](const FlightRecord& wait) { return wait.name == std::string_view("all_reduce"); });
      return false;
    };
    while (!is_seen()) std::this_thread::yield();
    for (const FlightRecorder* recorder : FlightRecorder::all())
      if (recorder->is_thread() && recorder->rank() < 2) dumps.push_back(Json::parse(flight_json(*recorder, "a test")));
    all_reduce(*group, at::ones({2}), Reduce::kSum);
  });
  ASSERT_EQ(dumps.size(), 2U);
  EXPECT_EQ(dumps[0]["rank"], 0);
  EXPECT_EQ(dumps[0]["ranks"], 2);
  EXPECT_EQ(dumps[0]["reason"], "a test");
  EXPECT_EQ(dumps[0]["groups"], Json::parse(R"([{"ranks": [0, 1], "calls": 2}])"));
  EXPECT_EQ(dumps[1]["groups"][0]["calls"], 1);
  const Json& done = dumps[0]["communications"][0];
  const Json& open = dumps[0]["communications"][1];
  EXPECT_EQ(done["state"], "done");
  EXPECT_EQ(open["state"], "under way");
  EXPECT_EQ(open["name"], "all_reduce");
  EXPECT_EQ(open["operator"], "aten::mm");
  EXPECT_EQ(open["dtype"], "Float");
  EXPECT_FALSE(open.contains("end"));
  EXPECT_GE(open["waits_since"].get<double>(), done["end"].get<double>());
  EXPECT_LT(dumps[0]["time"].get<double>() - open["waits_since"].get<double>(), 60);
  EXPECT_EQ(dumps[0]["no_stack"], "a program without Python");
}

TEST(FlightDumpTest, AFolderThatCannotBeWrittenIsNamed) {
  run_ranks(1, [](World&) {
    const std::string folder = "/proc/no-such-folder";
    try {
      dump_flights(folder, "a test");
      ADD_FAILURE() << "written";
    } catch (const c10::Error& error) {
      expect_error("[dump] " + folder, error.what_without_backtrace());
    }
  });
}

}  // namespace
}  // namespace shardwise::flight_recorder_test
