#include "tests/support/accelerator/accelerator.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::accelerator {
namespace {

const at::Device kFirst(kType, 0), kSecond(kType, 1);

c10::Stream new_stream(at::Device device) { return c10::impl::VirtualGuardImpl(kType).getNewStream(device); }

at::Tensor numbers(at::Device device) { return at::arange(6, at::kDouble).view({2, 3}).to(device); }

/// A kernel of our own: adds one to each element.
void add_one(const at::Tensor& tensor, c10::Stream stream) {
  auto* const values = static_cast<double*>(host_address(tensor.mutable_data_ptr()));
  launch("add_one", stream, {writes(tensor)}, [values, n = tensor.numel()] {
    for (int64_t i = 0; i < n; ++i) values[i] += 1;
  });
}

TEST(AcceleratorTest, OperatorsGiveTheCpusResults) {
  const at::Tensor dense = numbers(at::kCPU), x = numbers(kFirst);
  EXPECT_EQ(x.device(), kFirst);
  EXPECT_TRUE(at::equal((x * 2 + x.sum(0)).cpu(), dense * 2 + dense.sum(0)));
  EXPECT_TRUE(at::equal(x.t().matmul(x).cpu(), dense.t().matmul(dense)));
  EXPECT_TRUE(at::equal(x.softmax(1).cpu(), dense.softmax(1)));
  EXPECT_TRUE(at::equal(std::get<1>(x.sort(1, true)).cpu(), std::get<1>(dense.sort(1, true))));
  EXPECT_TRUE(at::equal(x.gt(2).nonzero().cpu(), dense.gt(2).nonzero()));
  EXPECT_TRUE(at::equal(at::cat({x, x.select(1, 0).unsqueeze(1)}, 1).cpu(),
                        at::cat({dense, dense.select(1, 0).unsqueeze(1)}, 1)));
  EXPECT_TRUE(at::equal(x.index({at::tensor({1, 0}).to(kFirst)}).cpu(), dense.flip(0)));
  EXPECT_EQ(x[1][2].item<double>(), 5);
  at::Tensor written = x.clone();
  written[0].fill_(7);
  written.index_put_({at::tensor({1}).to(kFirst)}, at::ones({}, x.options()));
  EXPECT_TRUE(at::equal(written.cpu(), at::tensor({7., 7., 7., 1., 1., 1.}).view({2, 3})));
  expect_no_faults();
}

TEST(AcceleratorTest, GradientsGiveTheCpusResults) {
  const auto gradient = [](const at::Tensor& input) {
    const at::Tensor x = input.detach().requires_grad_();
    return torch::autograd::grad({(x.exp() * x).sum()}, {x})[0].cpu();
  };
  EXPECT_TRUE(at::equal(gradient(numbers(kSecond)), gradient(numbers(at::kCPU))));
  expect_no_faults();
}

TEST(AcceleratorTest, TensorsOfTwoDevicesAreAnError) {
  EXPECT_THROW(numbers(kFirst) + numbers(kSecond), c10::Error);
  EXPECT_TRUE(at::equal((numbers(kFirst).to(kSecond) + numbers(kSecond)).cpu(), numbers(at::kCPU) * 2));
  expect_no_faults();
}

TEST(AcceleratorTest, WorkRunsLater) {
  const at::Tensor x = numbers(kFirst);
  std::atomic<bool> may_run = false;
  launch("wait", current_stream(kFirst), {}, [&] { may_run.wait(false); });
  const at::Tensor y = x + 1;  // the host goes on
  EXPECT_FALSE(current_stream(kFirst).query());
  may_run = true;
  may_run.notify_all();
  EXPECT_TRUE(at::equal(y.cpu(), numbers(at::kCPU) + 1));
  EXPECT_TRUE(current_stream(kFirst).query());
  expect_no_faults();
}

TEST(AcceleratorDeathTest, HostCannotReadDeviceMemory) {
  const at::Tensor x = numbers(kFirst);
  EXPECT_DEATH(EXPECT_EQ(*static_cast<const double*>(x.const_data_ptr()), 0), "");
}

TEST(AcceleratorTest, LaunchOnAnotherDeviceIsAFault) {
  const at::Tensor x = numbers(kSecond);
  add_one(x, current_stream(kSecond));  // the first device is current
  expect_error("add_one was launched on stream 0 of device 1 while device 0 was current", faults_in_lines());
  add_one(x, current_stream(kFirst));
  expect_error("add_one was launched on stream 0 of device 0, but its memory is of device 1", faults_in_lines());
  const c10::DeviceGuard guard(kSecond);
  const at::Tensor y = numbers(kSecond);
  add_one(y, current_stream(kSecond));
  EXPECT_EQ(y[0][0].item<double>(), 1);
  expect_no_faults();
}

TEST(AcceleratorTest, UseOnAnotherStreamNeedsAnEvent) {
  const c10::Stream other = new_stream(kFirst);
  const std::string on_other = fmt::format("add_one on stream {} of device 0 writes", other.id());
  const at::Tensor x = numbers(kFirst);
  add_one(x, other);
  expect_error(on_other + " memory that aten::copy_ on stream 0 of device 0 writes: nothing orders the two",
               faults_in_lines());
  {
    const at::Tensor sum = x + x;
    expect_error("reads memory that " + on_other, faults_in_lines());
  }
  c10::Event event(kType);
  event.record(other);
  event.block(current_stream(kFirst));
  const at::Tensor sum = x + x;
  EXPECT_EQ(faults_in_lines(), "");
  add_one(x, other);  // while sum may be read from it
  expect_error(on_other + " memory that aten::add on stream 0 of device 0 reads", faults_in_lines());
  other.synchronize();  // the host may order them too
  const at::Tensor again = x + x;
  expect_no_faults();
}

TEST(AcceleratorTest, PartsOfOneBlockAreApart) {
  const c10::Stream other = new_stream(kFirst);
  const at::Tensor x = numbers(kFirst);
  current_stream(kFirst).synchronize();
  launch("left", other, {writes(x.narrow(1, 0, 2))}, [] {});
  const at::Tensor right = x.narrow(1, 2, 1) + 1;
  EXPECT_EQ(faults_in_lines(), "");
  launch("row", other, {writes(x[1])}, [] {});
  expect_error("row on stream", faults_in_lines());
  other.synchronize();
}

TEST(AcceleratorTest, MemoryIsFreedWhenItsStreamsAreThrough) {
  const c10::Stream other = new_stream(kFirst);
  for (const bool is_recorded : {false, true}) {
    at::Tensor x = numbers(kFirst);
    current_stream(kFirst).synchronize();
    launch("use", other, {reads(x)}, [] {});
    if (is_recorded) x.record_stream(other);
    x.reset();
    if (is_recorded)
      EXPECT_EQ(faults_in_lines(), "");
    else
      expect_error("was freed while use on stream", faults_in_lines());
  }
}

TEST(AcceleratorTest, FailedKernelIsToldWhereTheHostWaits) {
  const at::Tensor rows = at::gather(numbers(kFirst), 0, at::tensor({2}).view({1, 1}).to(kFirst));
  EXPECT_THROW(rows.cpu(), c10::Error);
  expect_error("aten::gather failed on stream 0 of device 0", faults_in_lines());
}

TEST(AcceleratorTest, EachThreadHasItsDeviceAndStream) {
  run_ranks(3, [](World& world) {
    const c10::impl::VirtualGuardImpl device(kType);
    device.setDevice({kType, static_cast<c10::DeviceIndex>(world.rank())});
    const c10::StreamGuard guard(new_stream(device.getDevice()));
    const at::Tensor x = numbers(at::Device(kType));
    EXPECT_EQ(x.device().index(), world.rank());
    EXPECT_TRUE(at::equal((x * 2).cpu(), numbers(at::kCPU) * 2));
  });
  expect_no_faults();
}

}  // namespace
}  // namespace shardwise::accelerator
