// What goes wrong on accelerators alone: streams, devices that are not current, indices that no kernel of the host checks.
#include "ops/embedding/lookup_options.h"
#include "runtime/api/dtensor.h"
#include "tests/support/accelerator/accelerator.h"
#include "tests/support/accelerator/stream_backend.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace shardwise::accelerator {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kSum = Placement::partial();

MeshPtr device_mesh(int64_t n_ranks) {
  std::vector<int64_t> ranks(n_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh::create(World::current(), kType, {{n_ranks}, ranks});
}

c10::Device own_device() { return c10::impl::VirtualGuardImpl(kType).getDevice(); }

/// A new stream of this rank's device that waits for what is on the current one.
c10::Stream stream_after_current() {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(kType).getNewStream(own_device());
  c10::Event event(kType);
  event.record(current_stream(own_device()));
  event.block(stream);
  return stream;
}

/// Runs `body` on `n_ranks` ranks with devices of their own. The text of what is thrown; faults are failures of the test.
std::string error_on_devices(int64_t n_ranks, const std::function<void()>& body) {
  const std::string error = error_of_ranks(n_ranks, [&](World& world) { run_rank(world, body); });
  expect_no_faults();
  return error;
}

void on_devices(int64_t n_ranks, const std::function<void()>& body) { EXPECT_EQ(error_on_devices(n_ranks, body), ""); }

/// What each of `n_ranks` ranks says of `call`, which must throw on all.
std::vector<std::string> errors_by_rank(int64_t n_ranks, const std::function<void()>& call) {
  std::vector<std::string> errors(n_ranks);
  on_devices(n_ranks, [&] {
    try {
      call();
    } catch (const c10::Error& error) {
      errors[World::current()->rank()] = error.what_without_backtrace();
    }
  });
  return errors;
}

TEST(AcceleratorRedistributeTest, AnyLayoutBecomesAnyOther) {
  on_devices(4, [] {
    std::mt19937 random(5);
    for (int i = 0; i < 60; ++i) {
      const auto mesh = DeviceMesh::create(World::current(), kType, {{2, 2}, {2, 0, 3, 1}});
      const Dims sizes{static_cast<int64_t>(random() % 7), 5};
      const at::Tensor dense = at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
      const auto from = random_placements(sizes, mesh->grid(), random),
                 to = random_placements(sizes, mesh->grid(), random);
      const bool is_async = random() % 2 == 0;
      const at::Tensor moved = redistribute(lay_out(dense, mesh, from), mesh, to, {.async_op = is_async});
      EXPECT_TRUE(full_tensor(moved).cpu().equal(dense)) << to_string(from) << " -> " << to_string(to);
    }
  });
}

TEST(AcceleratorRedistributeTest, ManyShareMessages) {
  on_devices(3, [] {
    const auto mesh = device_mesh(3);
    const at::Tensor dense = at::arange(35, at::kDouble).view({7, 5});
    const auto moved = redistribute_many(
        {lay_out(dense, mesh, {kRows}), lay_out(dense * 2, mesh, {Placement::shard(1)})}, {{kReplicate}, {kRows}}, {});
    EXPECT_TRUE(full_tensor(moved[0]).cpu().equal(dense));
    EXPECT_TRUE(full_tensor(moved[1]).cpu().equal(dense * 2));
  });
}

TEST(AcceleratorStreamTest, AsyncResultIsReadInOrderOnEveryStream) {
  for (const Placement& from : {kRows, kSum})
    on_devices(3, [&] {
      const auto mesh = device_mesh(3);
      const at::Tensor dense = at::arange(35, at::kDouble).view({7, 5});
      const at::Tensor result = redistribute(lay_out(dense, mesh, {from}), mesh, {kReplicate}, {.async_op = true});
      const c10::Stream first = stream_after_current(), second = stream_after_current();
      at::Tensor sum, difference;
      {
        const c10::StreamGuard guard(first);
        sum = result + 1;
      }
      {
        const c10::StreamGuard guard(second);
        difference = result - 1;
      }
      first.synchronize();
      second.synchronize();
      EXPECT_TRUE(to_local(sum).cpu().equal(dense + 1));
      EXPECT_TRUE(to_local(difference).cpu().equal(dense - 1));
    });
}

TEST(AcceleratorStreamTest, AliasOfAnAsyncResultIsReadInOrderOnEveryStream) {
  using View = at::Tensor (*)(const at::Tensor&);
  for (const View view :
       {View([](const at::Tensor& x) { return x.detach(); }), View([](const at::Tensor& x) { return x.view({7, 5}); })})
    on_devices(3, [&] {
      const auto mesh = device_mesh(3);
      const at::Tensor dense = at::arange(35, at::kDouble).view({7, 5});
      const at::Tensor result = redistribute(lay_out(dense, mesh, {kRows}), mesh, {kReplicate}, {.async_op = true});
      const c10::Stream first = stream_after_current(), second = stream_after_current();
      at::Tensor alias, sum;
      {
        const c10::StreamGuard guard(first);
        alias = view(result);
      }
      {
        const c10::StreamGuard guard(second);
        sum = alias + 1;
      }
      first.synchronize();
      second.synchronize();
      EXPECT_TRUE(to_local(sum).cpu().equal(dense + 1));
    });
}

TEST(AcceleratorStreamTest, AsyncMoveKeepsItsMemoryUntilItIsOver) {
  for (const bool is_used : {false, true})
    on_devices(3, [&] {
      const auto mesh = device_mesh(3);
      at::Tensor source = lay_out(at::arange(35, at::kDouble).view({7, 5}), mesh, {kRows});
      at::Tensor result = redistribute(source, mesh, {Placement::shard(1)}, {.async_op = true});
      source.reset();
      const c10::Stream other = stream_after_current();
      const c10::StreamGuard guard(other);
      const at::Tensor used = is_used ? result + 1 : at::Tensor();
      if (is_used) other.synchronize();
      result.reset();
    });
}

TEST(AcceleratorStreamTest, RecordStreamIsOfEveryPiece) {
  on_devices(3, [] {
    const auto mesh = device_mesh(3);
    at::Tensor tensor = lay_out(at::arange(35, at::kDouble).view({7, 5}), mesh, {kRows});
    const c10::Stream other = stream_after_current();
    at::Tensor sum;
    {
      const c10::StreamGuard guard(other);
      sum = tensor + 1;
    }
    tensor.record_stream(other);
    tensor.reset();
    other.synchronize();
  });
}

TEST(AcceleratorDeviceTest, LookupsRunOnTheDeviceOfTheTable) {
  for (const LookupExchange exchange : {LookupExchange::kReduceScatter, LookupExchange::kAllToAll})
    on_devices(3, [&] {
      const LookupScope scope({.exchange = exchange});
      const auto mesh = device_mesh(3);
      const at::Tensor dense = at::arange(35, at::kDouble).view({7, 5}), ids = at::tensor({6, 0, 3, 3});
      const at::Tensor table = lay_out(dense, mesh, {kRows}), own_ids = lay_out(ids, mesh, {kRows});
      const c10::DeviceGuard another({kType, static_cast<c10::DeviceIndex>(7)});
      EXPECT_TRUE(full_tensor(at::embedding(table, own_ids)).cpu().equal(dense.index_select(0, ids)));
    });
}

TEST(AcceleratorIndexTest, IndicesOutOfRangeAreOneErrorOnAllRanks) {
  const at::Tensor dense = at::arange(35, at::kDouble).view({7, 5});
  using Call = std::function<void(const at::Tensor&, const at::Tensor&)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"index 7 is out of bounds", [](const auto& x, const auto& at) { x.index({at}); }},
      {"index 7 is out of bounds",
       [](const auto& x, const auto& at) { x.clone().index_put_({at}, at::ones({}, x.options())); }},
      {"index 7 is out of bounds", [](const auto& x, const auto& at) { x.index_select(0, at); }},
      {"index 7 is out of bounds", [](const auto& x, const auto& at) { at::gather(x, 0, at.unsqueeze(1)); }}};
  for (const auto& [words, call] : calls)
    for (const Placement& of_indices : {kReplicate, kRows}) {
      const auto errors = errors_by_rank(3, [&, c = call] {
        const auto mesh = device_mesh(3);
        c(lay_out(dense, mesh, {kRows}), lay_out(at::tensor({0, 7, 2}), mesh, {of_indices}));
      });
      expect_error(words, errors[0]);
      EXPECT_EQ(errors[1], errors[0]);
      EXPECT_EQ(errors[2], errors[0]);
    }
}

TEST(AcceleratorIndexTest, ClassesOutOfRangeAreOneErrorOnAllRanks) {
  for (const Placement& of_samples : {kReplicate, kRows}) {
    const auto errors = errors_by_rank(3, [&] {
      const auto mesh = device_mesh(3);
      const at::Tensor log_probs = lay_out(at::arange(28, at::kDouble).view({4, 7}).neg(), mesh, {of_samples});
      at::nll_loss(log_probs, lay_out(at::tensor({6, 7, 3, 2}, at::kLong), mesh, {of_samples}));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "Target 7 is out of bounds.");
  }
}

}  // namespace
}  // namespace shardwise::accelerator
