// Groups of parameters without a language's modules: what is gathered, reduced and sent, and what is where in between.
#include "wrappers/fsdp/parameter_group.h"

#include "runtime/api/redistribute.h"
#include "runtime/comm/events.h"
#include "shardwise/device_mesh.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace sw = shardwise;

namespace shardwise::parameter_group_test {
namespace {

/// Rows of any number, fewer than ranks, none, a scalar, and one that travels by itself.
std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> result;
  for (const Dims& sizes : {Dims{10, 3}, Dims{2}, Dims{0, 4}, Dims{}, Dims{301, 700}})
    result.push_back(at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes).set_requires_grad(true));
  return result;
}

const std::vector<std::string> kNames{"a", "b", "c", "d", "e"};

TEST(ParameterGroupTest, GathersAndReducesWhatRanksLack) {
  for (const int64_t n_ranks : {1, 3, 4})
    run_ranks(n_ranks, [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks});
      const auto dense = parameters();
      const auto group = ParameterGroup::create(kNames, dense, mesh);
      std::vector<bool> told;
      group->on_exchange([&](bool is_in_place) { told.push_back(is_in_place); });
      int64_t n_bytes = 0, n_own = 0, n_scalar = 4;
      for (const at::Tensor& each : group->sharded())
        if (each.dim() > 0) {
          n_bytes += static_cast<int64_t>(each.numel()) * 4;
          n_own += maybe_dtensor(each)->shards()[0].numel() * 4;
        }
      const CommTrace gathered;
      group->gather();
      EXPECT_EQ(gathered.bytes_received(), n_bytes - n_own);
      EXPECT_EQ(gathered.total_count(), n_ranks > 1);
      for (size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(at::equal(group->leaves()[i], dense[i]));

      at::Tensor loss = at::zeros({});
      for (const at::Tensor& leaf : group->leaves()) loss = loss + (leaf * leaf).sum() * (world.rank() + 1);
      group->release();
      group->gather();  // what autograd saved is there again
      loss.backward();
      const CommTrace reduced;
      group->start_reduce();
      group->release();
      group->finish_reduce();
      const auto n_flags = static_cast<int64_t>(dense.size());  // a byte each: there is a gradient
      EXPECT_EQ(reduced.bytes_received(), (n_ranks - 1) * (n_own + n_scalar + n_flags));
      EXPECT_EQ(reduced.total_count(), n_ranks > 1);
      for (size_t i = 0; i < dense.size(); ++i)  // the mean of 2 x (rank + 1)
        EXPECT_TRUE(at::allclose(full_tensor(group->sharded()[i].grad()), dense[i].detach() * (n_ranks + 1)));
      EXPECT_EQ(told, (std::vector<bool>{true, false, true, false}));
    });
}

TEST(ParameterGroupTest, KeepsSlicesAmongFewRanks) {
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {4});
    const auto dense = parameters();
    const auto group = ParameterGroup::create(kNames, dense, mesh);
    const auto expect_gathered = [&] {
      for (size_t i = 0; i < dense.size(); ++i)
        EXPECT_TRUE(at::equal(group->leaves()[i], full_tensor(group->sharded()[i].detach())));
    };
    group->gather();
    group->release_to(2);
    EXPECT_ANY_THROW((group->leaves()[0] + 1));
    const CommTrace among_two;
    group->gather();
    const int64_t n_rows_of_slices[] = {5 * 3, 1, 0, 0}, n_last = (mesh->group(0)->index % 2 == 0 ? 151 : 150) * 700;
    EXPECT_EQ(among_two.bytes_received(), 4 * (n_rows_of_slices[0] + n_rows_of_slices[1] + n_last));
    const int64_t n_among_two = among_two.bytes_received();
    expect_gathered();
    group->release_to(2);
    {
      const at::NoGradGuard no_grad;
      group->sharded()[0].add_(1);
    }
    group->gather();  // what was kept is old
    expect_gathered();
    group->release_to(2);
    group->release();
    const CommTrace among_all;
    group->gather();
    EXPECT_GT(among_all.bytes_received(), n_among_two);
    expect_gathered();
  });
}

TEST(ParameterGroupTest, SplitsAlongGivenDims) {
  run_ranks(3, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3});
    const auto dense = parameters();
    const Placements along{Placement::shard(-1), Placement::shard(0, {0, 2, 0}), Placement::shard(1),
                           Placement::shard(0), Placement::shard(1)};
    const auto group = ParameterGroup::create(kNames, dense, mesh, {}, along);
    EXPECT_EQ(spec_of(group->sharded()[0])->placements()[0], Placement::shard(1));
    group->gather();
    for (size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(at::equal(group->leaves()[i], dense[i]));
    (group->leaves()[0] * group->leaves()[0]).sum().backward();
    group->start_reduce();
    group->finish_reduce();
    EXPECT_TRUE(at::allclose(full_tensor(group->sharded()[0].grad()), dense[0].detach() * 2));
    EXPECT_FALSE(group->sharded()[1].grad().defined());
  });
}

TEST(ParameterGroupTest, RanksMayHaveOtherGradients) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, std::vector<int64_t>{2, 2}})
    run_ranks(c10::multiply_integers(shape), [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", shape);
      const auto group = ParameterGroup::create(kNames, parameters(), mesh);
      group->gather();
      group->leaves()[world.rank() == 1 ? 1 : 0].sum().backward();
      group->start_reduce();
      group->finish_reduce();
      const auto n_ranks = static_cast<double>(mesh.size());
      const auto& sharded = group->sharded();
      EXPECT_TRUE(at::allclose(full_tensor(sharded[0].grad()), at::full({10, 3}, (n_ranks - 1) / n_ranks)));
      EXPECT_TRUE(at::allclose(full_tensor(sharded[1].grad()), at::full({2}, 1 / n_ranks)));
      EXPECT_FALSE(sharded[4].grad().defined());
    });
}

TEST(ParameterGroupTest, AddsUpWithoutMessages) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const auto group = ParameterGroup::create(kNames, parameters(), mesh);
    group->gather();
    const CommTrace sent;
    for (int step = 0; step < 3; ++step) {
      group->leaves()[0].sum().backward();
      group->accumulate();
    }
    EXPECT_EQ(sent.total_count(), 0);
    group->start_reduce();
    group->finish_reduce();
    EXPECT_TRUE(at::equal(full_tensor(group->sharded()[0].grad()), at::full({10, 3}, 3.)));
    EXPECT_FALSE(group->sharded()[1].grad().defined());
  });
}

TEST(ParameterGroupTest, ReadingWhatIsReleasedIsAnError) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const auto group = ParameterGroup::create(kNames, parameters(), mesh);
    EXPECT_ANY_THROW((group->leaves()[0] + 1));
    group->gather();
    EXPECT_FALSE(group->is_stale());
    const at::NoGradGuard no_grad;
    group->sharded()[0].add_(1);
    EXPECT_TRUE(group->is_stale());
  });
}

}  // namespace
}  // namespace shardwise::parameter_group_test
