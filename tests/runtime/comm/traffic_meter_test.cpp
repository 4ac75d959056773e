#include "runtime/comm/traffic_meter.h"

#include "runtime/comm/collectives.h"
#include "tests/support/ranks.h"

#include <ATen/ops/ones.h>
#include <c10/util/ApproximateClock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace shardwise::traffic_meter_test {
namespace {

/// One that is under way.
FlightRecorder::Begun begin(FlightRecorder& recorder, std::vector<int64_t> ranks, int64_t n_sent, int64_t n_received) {
  return recorder.begin(comm_thread(), {nullptr, std::move(ranks), 0},
                        {.name = "exchange", .bytes_sent = n_sent, .bytes_received = n_received});
}

void end(const FlightRecorder::Begun& begun) {
  FlightRecorder::set_ended(begun, c10::getApproximateTime(), /*is_done=*/true);
}

void sleep_ms(int n) { std::this_thread::sleep_for(std::chrono::milliseconds(n)); }

TEST(TrafficMeterTest, CountsByGroup) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  TrafficMeter meter(recorder.get());
  EXPECT_TRUE(meter.read().empty());
  end(begin(*recorder, {0, 1}, 10, 20));
  end(begin(*recorder, {0, 2, 3}, 1, 0));
  end(begin(*recorder, {0, 1}, 5, 5));
  for (int reading = 0; reading < 2; ++reading) {
    const auto& traffic = meter.read();
    ASSERT_EQ(traffic.size(), 2U);
    EXPECT_EQ(traffic[0].ranks, (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(traffic[0].n_calls, 2);
    EXPECT_EQ(traffic[0].bytes_sent, 15);
    EXPECT_EQ(traffic[0].bytes_received, 25);
    EXPECT_EQ(traffic[1].n_calls, 1);
    EXPECT_EQ(traffic[1].bytes_sent, 1);
  }
}

TEST(TrafficMeterTest, WhatIsUnderWayCountsItsTimeWhenItHasEnded) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  TrafficMeter meter(recorder.get());
  const auto number = begin(*recorder, {0, 1}, 8, 8);
  EXPECT_EQ(meter.read()[0].bytes_sent, 8);
  EXPECT_EQ(meter.read()[0].seconds, 0);
  sleep_ms(20);
  end(number);
  const double seconds = meter.read()[0].seconds;
  EXPECT_GE(seconds, 0.019);
  EXPECT_LT(seconds, 10);
  EXPECT_EQ(meter.read()[0].seconds, seconds);
  EXPECT_EQ(meter.read()[0].bytes_sent, 8);
}

TEST(TrafficMeterTest, RecordsThatAreLeftStandForThoseThatAreGone) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  TrafficMeter meter(recorder.get());
  for (int i = 0; i < 3500; ++i) end(begin(*recorder, {0, 1}, 4, 6));
  const auto& traffic = meter.read();
  EXPECT_NEAR(traffic[0].n_calls, 3500, 1e-6);
  EXPECT_NEAR(traffic[0].bytes_sent, 4 * 3500, 1e-6);
  EXPECT_NEAR(traffic[0].bytes_received, 6 * 3500, 1e-6);
}

TEST(TrafficMeterTest, CallsInAnEarlierWorldDoNotCount) {
  for (const int n_calls : {1500, 3})
    run_ranks(2, [n_calls](World& world) {
      const at::Tensor number = at::ones({1});
      for (int i = 0; i < n_calls; ++i) all_reduce(*everyone(world), number, Reduce::kMax);
      TrafficMeter meter(&FlightRecorder::of_thread(world.rank()));
      EXPECT_NEAR(meter.read().at(0).n_calls, n_calls, 1e-6);
    });
}

TEST(TrafficMeterTest, WaitsAreThoseOfNowTheLongestFirst) {
  const auto recorder = std::make_unique<FlightRecorder>(0);
  TrafficMeter meter(recorder.get());
  const auto first = begin(*recorder, {0, 1}, 8, 8);
  FlightRecorder::set_waiting(first, c10::getApproximateTime());
  sleep_ms(10);
  const auto second = begin(*recorder, {0, 1}, 8, 8);
  FlightRecorder::set_waiting(second, c10::getApproximateTime());
  begin(*recorder, {0, 1}, 8, 8);  // nobody waits for it
  const auto waits = meter.waits();
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_EQ(waits[0].name, "exchange");
  EXPECT_GT(waits[0].seconds, waits[1].seconds);
  end(first);
  end(second);
  EXPECT_TRUE(meter.waits().empty());
}

}  // namespace
}  // namespace shardwise::traffic_meter_test
