// Wrappers to distributed tensors and back, over ranks as threads: requirements T3 to T7.
#include "pictures/picture.h"
#include "runtime/comm/events.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"
#include "wrappers/local_shards_wrapper.h"

#include <ATen/ATen.h>

namespace shardwise::local_shards_convert_test {
namespace {

at::Tensor table(at::IntArrayRef sizes = {8, 16}) {
  return at::arange(Box::whole(sizes).numel(), at::kDouble).view(sizes);
}

at::Tensor piece_of(const at::Tensor& whole, const Box& box) {
  at::Tensor piece = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) piece = piece.narrow(dim, box.offsets[dim], box.sizes[dim]);
  return piece.contiguous().clone();
}

at::Tensor wrapper_of(const at::Tensor& whole, const std::vector<Box>& boxes) {
  std::vector<at::Tensor> shards;
  std::vector<Dims> offsets;
  for (const Box& box : boxes) {
    shards.push_back(piece_of(whole, box));
    offsets.push_back(box.offsets);
  }
  return make_local_shards(shards, offsets, whole.options(), whole.dim());
}

Box rows(int64_t begin, int64_t end) { return {{begin, 0}, {end - begin, 16}}; }

/// The same pieces: storage, values, sizes and offsets.
void expect_same(const at::Tensor& back, const at::Tensor& wrapper) {
  ASSERT_TRUE(is_local_shards(back));
  EXPECT_EQ(local_offsets(back), local_offsets(wrapper));
  EXPECT_EQ(local_sizes(back), local_sizes(wrapper));
  const auto a = local_shards(back.detach()), b = local_shards(wrapper.detach());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].data_ptr(), b[i].data_ptr());
}

/// There and back on ranks 0, 1, ... with `boxes`, full values included. Returns the placements.
std::string there_and_back(const std::vector<std::vector<Box>>& boxes, Placements placements, Dims mesh_shape = {},
                           std::vector<int64_t> mesh_ranks = {}, const FromLocalOptions& options = {}) {
  if (mesh_shape.empty()) mesh_shape = {static_cast<int64_t>(boxes.size())};
  return on_each_rank(static_cast<int64_t>(boxes.size()), [&](World& world) {
    const auto mesh = make_mesh(mesh_shape, mesh_ranks);
    const at::Tensor wrapper = wrapper_of(table(), boxes[world.rank()]);
    const at::Tensor tensor = from_local_shards(wrapper, mesh, placements, options);
    EXPECT_EQ(tensor.sizes(), table().sizes());
    EXPECT_EQ(tensor.strides(), table().strides());
    EXPECT_FALSE(picture(spec_of(tensor)->layout()).empty());
    expect_same(to_local(tensor), wrapper);
    if (mesh->is_member()) {
      EXPECT_TRUE(at::equal(full_tensor(tensor), table()));
    }
    return to_string(spec_of(tensor)->layout().placements()) + picture(spec_of(tensor)->layout());
  })[0];
}

TEST(LocalShardsConvertTest, T3RowWiseEvenGivesTheSameWrapperBack) {
  const auto text = there_and_back({{rows(0, 2)}, {rows(2, 4)}, {rows(4, 6)}, {rows(6, 8)}}, {Placement::shard(0)});
  EXPECT_TRUE(text.starts_with("[Shard(0)]")) << text;
}

TEST(LocalShardsConvertTest, T3TheColumnOffsetOfARowPieceIsNotTheWidth) {
  const auto error = error_of_ranks(2, [](World& world) {
    const at::Tensor piece = at::zeros({4, 16});
    from_local_shards(make_local_shards({piece}, {{world.rank() * 4, world.rank() * 16}}), make_mesh({2}),
                      {Placement::shard(0)}, {.shape = Dims{8, 16}});
  });
  expect_error(
      "reaches outside the tensor of shape [8, 16]. Correct its offsets (a piece of whole rows begins at column 0)",
      error);
}

TEST(LocalShardsConvertTest, T4RowWiseUnevenIsExactOnEveryRank) {
  const auto text = there_and_back({{rows(0, 1)}, {rows(1, 4)}, {rows(4, 5)}, {rows(5, 8)}}, {Placement::shard(0)}, {},
                                   {}, {.shape = Dims{8, 16}, .stride = Dims{16, 1}});
  EXPECT_TRUE(text.starts_with("[Shard(0, sizes=[1, 3, 1, 3])]")) << text;
}

TEST(LocalShardsConvertTest, T5NonMembersOfATableHoldNothingAndKnowItsShape) {
  run_ranks(4, [](World& world) {
    for (int64_t owner = 0; owner < 4; ++owner) {
      const auto mesh = make_mesh({1}, {owner});
      const at::Tensor whole = table({2 + owner, 16});
      const bool owns = world.rank() == owner;
      const at::Tensor wrapper =
          wrapper_of(whole, owns ? std::vector<Box>{Box::whole(whole.sizes())} : std::vector<Box>{});
      const at::Tensor tensor = from_local_shards(wrapper, mesh, {Placement::replicate()},
                                                  {.shape = Dims(whole.sizes()), .stride = Dims(whole.strides())});
      EXPECT_EQ(tensor.sizes(), whole.sizes());
      EXPECT_EQ(tensor.strides(), whole.strides());
      EXPECT_EQ(to_local(tensor).numel(), owns ? whole.numel() : 0);
      expect_same(to_local(tensor), wrapper);
      expect_error(fmt::format("rank {}", owner), picture(spec_of(tensor)->layout()));
    }
  });
}

TEST(LocalShardsConvertTest, T5ANonMemberMustGiveTheShape) {
  const auto error = error_of_ranks(2, [](World& world) {
    from_local_shards(world.rank() == 0 ? wrapper_of(table(), {rows(0, 8)}) : make_local_shards({}, {}),
                      make_mesh({1}, {0}), {Placement::replicate()});
  });
  expect_error("rank 1 is outside the mesh (1) and cannot know the tensor's shape. Give shape=", error);
}

TEST(LocalShardsConvertTest, T6SeveralColumnPiecesInAnyOrder) {
  const auto columns = [](int64_t begin, int64_t end) { return Box{{0, begin}, {8, end - begin}}; };
  there_and_back({{columns(5, 9)}, {columns(9, 12)}, {columns(12, 13), columns(0, 5)}, {columns(13, 16)}},
                 {Placement::shard(1)});
  there_and_back({{columns(5, 9), columns(9, 16)}, {}, {columns(0, 5)}}, {Placement::shard(1)});
}

TEST(LocalShardsConvertTest, T6GridCells) {
  there_and_back({{{{0, 0}, {3, 10}}}, {{{0, 10}, {3, 6}}}, {{{3, 10}, {5, 6}}}, {{{3, 0}, {5, 10}}}},
                 {Placement::shard(0)});
  there_and_back({{{{0, 0}, {3, 10}}}, {{{0, 10}, {3, 6}}}, {{{3, 0}, {5, 10}}}, {{{3, 10}, {5, 6}}}},
                 {Placement::shard(0), Placement::shard(1)}, {2, 2});
}

TEST(LocalShardsConvertTest, T6UnevenTablesOnSubmeshesAreDrawnTrulyByNonMembers) {
  const auto pictures = on_each_rank(4, [](World& world) {
    const auto mesh = make_mesh({2}, {3, 1});
    for (int64_t split : {3, 5}) {
      const std::vector<std::vector<Box>> boxes{{}, {rows(split, 8)}, {}, {rows(0, split)}};
      const at::Tensor wrapper = wrapper_of(table(), boxes[world.rank()]);
      const at::Tensor tensor =
          from_local_shards(wrapper, mesh, {Placement::shard(0)}, {.shape = Dims{8, 16}, .stride = Dims{16, 1}});
      expect_same(to_local(tensor), wrapper);
      EXPECT_EQ(to_string(spec_of(tensor)->placements()), fmt::format("[Shard(0, sizes=[{}, {}])]", split, 8 - split));
      if (split == 5) return picture(spec_of(tensor)->layout());
    }
    return std::string();
  });
  for (const std::string& each : pictures) EXPECT_EQ(each, pictures[1]);
}

TEST(LocalShardsConvertTest, MembersDoNotWaitForOthers) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({2}, {0, 1});
    if (world.rank() == 2) return;
    from_local_shards(wrapper_of(table(), {rows(world.rank() * 4, world.rank() * 4 + 4)}), mesh, {Placement::shard(0)});
  });
}

/// The keys in the program's store after so many calls on a submesh by all ranks.
int64_t keys_after(int64_t n_calls, const Placement& placement) {
  c10::intrusive_ptr<c10d::Store> store;
  run_ranks(4, [&](World& world) {
    if (world.rank() == 0) store = everyone(world)->process_group->getStore();
    const auto mesh = make_mesh({2}, {3, 1});
    const std::vector<std::vector<Box>> boxes{{}, {rows(3, 8)}, {}, {rows(0, 3)}};
    for (int64_t call = 0; call < n_calls; ++call)
      from_local_shards(wrapper_of(table(), boxes[world.rank()]), mesh, {placement}, {.shape = Dims{8, 16}});
  });
  return store->getNumKeys();
}

TEST(LocalShardsConvertTest, CallsOnSubmeshesLeaveNoKeysInTheStore) {
  for (const Placement& placement : {Placement::shard(0), Placement::shard(0, {3, 5})})
    EXPECT_EQ(keys_after(20, placement), keys_after(0, placement)) << to_string(placement);
}

TEST(LocalShardsConvertTest, WherePlacementsSayEverythingNoRankWaitsForAnother) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({2}, {2, 0});
    const auto pieces = Placement::enumerable({{{0, 0}, {3, 16}, 2}, {{3, 0}, {5, 16}, 0}});
    for (const Placement& placement : {Placement::shard(0, {3, 5}), pieces}) {
      if (world.rank() == 0) continue;
      CommTrace trace;
      const auto wrapper =
          world.rank() == 2 ? wrapper_of(table(), {rows(0, 3)}) : make_local_shards({}, {}, table().options());
      const auto tensor = from_local_shards(wrapper, mesh, {placement}, {.shape = Dims{8, 16}});
      EXPECT_EQ(trace.total_count(), 0);
      EXPECT_EQ(spec_of(tensor)->strides(), (Dims{16, 1}));
      expect_same(to_local(tensor), wrapper);
    }
  });
}

TEST(LocalShardsConvertTest, PiecesThatAreNotThePlacementsAreAnError) {
  const auto errors = on_each_rank(2, [](World& world) -> std::string {
    try {
      from_local_shards(wrapper_of(table(), {rows(world.rank() * 4, world.rank() * 4 + 4)}), make_mesh({2}),
                        {Placement::shard(0, {3, 5})}, {.shape = Dims{8, 16}});
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  });
  expect_error("rank 0 gives [0:4, 0:16], but [Shard(0, sizes=[3, 5])] of shape [8, 16] places [0:3, 0:16] there",
               errors[0]);
  expect_error("rank 1 gives [4:8, 0:16], but [Shard(0, sizes=[3, 5])] of shape [8, 16] places [3:8, 0:16] there",
               errors[1]);
}

TEST(LocalShardsConvertTest, ARankWithoutPiecesMayGiveATensorWhereOthersGiveWrappers) {
  run_ranks(3, [](World& world) {
    const auto pieces = Placement::enumerable({{{0, 0}, {3, 16}, 2}, {{3, 0}, {5, 16}, 0}});
    const at::Tensor local = world.rank() == 1 ? at::empty({0, 16}, at::kDouble)
                                               : wrapper_of(table(), {world.rank() == 2 ? rows(0, 3) : rows(3, 8)});
    const at::Tensor tensor = from_local(local, make_mesh({3}), {pieces}, {.shape = Dims{8, 16}});
    EXPECT_TRUE(at::equal(full_tensor(tensor), table()));
  });
}

TEST(LocalShardsConvertTest, ARankWithoutPiecesTakesItsDtypeFromTheOthers) {
  run_ranks(2, [](World& world) {
    const at::Tensor wrapper = world.rank() == 0 ? wrapper_of(table(), {rows(0, 8)}) : make_local_shards({}, {});
    const at::Tensor tensor = from_local_shards(wrapper, make_mesh({2}), {Placement::shard(0)});
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_EQ(to_local(tensor).scalar_type(), at::kDouble);
    EXPECT_EQ(local_offsets(to_local(tensor)).size(), world.rank() == 0 ? 1 : 0);
  });
}

TEST(LocalShardsConvertTest, AMisfitIsTheSameErrorOnEveryRank) {
  const auto errors = on_each_rank(3, [](World& world) {
    const std::vector<std::vector<Box>> boxes{{rows(0, 4)}, {rows(3, 6)}, {rows(6, 8)}};
    try {
      from_local_shards(wrapper_of(table(), boxes[world.rank()]), make_mesh({3}), {Placement::shard(0)});
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  });
  expect_error("of rank 0 and [3:6, 0:16] of rank 1 overlap", errors[0]);
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
}

TEST(LocalShardsConvertTest, T7AWrapperInGivesAWrapperOutAndAPlainTensorAPlainOne) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const int64_t begin = world.rank() * 4;
    const at::Tensor plain = piece_of(table(), rows(begin, begin + 4));
    const at::Tensor made_plain = from_local(plain, mesh, {Placement::shard(0)});
    EXPECT_FALSE(is_local_shards(to_local(made_plain)));
    const at::Tensor made = from_local(wrapper_of(table(), {rows(begin, begin + 4)}), mesh, {Placement::shard(0)});
    for (const at::Tensor& same : {made, made.detach(), made.clone(), at::zeros_like(made), made * 2})
      EXPECT_TRUE(is_local_shards(to_local(same)));
    EXPECT_FALSE(is_local_shards(full_tensor(made)));
  });
}

TEST(LocalShardsConvertTest, T7GradientsHaveTheKindOfTheirTensor) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const int64_t split = 3;
    const Box box = world.rank() == 0 ? rows(0, split) : rows(split, 8);
    const at::Tensor wrapper = wrapper_of(table(), {box}).requires_grad_();
    const at::Tensor tensor = from_local(wrapper, mesh, {Placement::shard(0)});
    (tensor * tensor).sum().backward();
    ASSERT_TRUE(is_local_shards(wrapper.grad()));
    EXPECT_TRUE(at::equal(local_shards(wrapper.grad())[0], piece_of(table(), box) * 2));

    const at::Tensor leaf = from_local(wrapper.detach(), mesh, {Placement::shard(0)}).detach().requires_grad_();
    leaf.sum().backward();  // a gradient made of nothing of the table's
    const at::Tensor local_grad = to_local(leaf.grad());
    ASSERT_TRUE(is_local_shards(local_grad));
    EXPECT_TRUE(at::equal(local_shards(local_grad)[0], at::ones(box.sizes, at::kDouble)));

    const at::Tensor plain =
        from_local(piece_of(table(), rows(world.rank() * 4, world.rank() * 4 + 4)), mesh, {Placement::shard(0)})
            .detach()
            .requires_grad_();
    plain.sum().backward();
    EXPECT_FALSE(is_local_shards(to_local(plain.grad())));
  });
}

TEST(LocalShardsConvertTest, T7GradientsOfTwoTensorsShareNoMemory) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const Box box = world.rank() == 0 ? rows(0, 3) : rows(3, 8);
    const auto leaf = [&] {
      return from_local(wrapper_of(table(), {box}), mesh, {Placement::shard(0)}).detach().requires_grad_();
    };
    const at::Tensor a = leaf(), b = leaf();
    const at::Tensor sum = a + b;
    for (int round = 0; round < 2; ++round) sum.backward(at::ones_like(sum.detach()), /*retain_graph=*/true);
    EXPECT_TRUE(at::equal(full_tensor(a.grad()), at::full({8, 16}, 2.0, at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(b.grad()), at::full({8, 16}, 2.0, at::kDouble)));
  });
}

TEST(LocalShardsConvertTest, T7ToLocalIsDifferentiable) {
  run_ranks(2, [](World& world) {
    const Box box = world.rank() == 0 ? rows(0, 3) : rows(3, 8);
    const at::Tensor leaf =
        from_local(wrapper_of(table(), {box}), make_mesh({2}), {Placement::shard(0)}).detach().requires_grad_();
    const at::Tensor local = to_local(leaf);
    const at::Tensor out = local * 3;
    out.backward(at::ones_like(out));
    EXPECT_TRUE(at::equal(full_tensor(leaf.grad()), at::full({8, 16}, 3.0, at::kDouble)));
  });
}

TEST(LocalShardsConvertTest, WritesToPiecesCountAsWritesToTheTensorAndItsWrapper) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const Box mine = world.rank() == 0 ? rows(0, 3) : rows(3, 8);
    for (const bool is_leaf : {true, false}) {  // with gradients, and without
      const at::Tensor wrapper = wrapper_of(table(), {mine}).requires_grad_(is_leaf);
      const at::Tensor tensor = from_local_shards(wrapper, mesh, {Placement::shard(0)});
      const at::NoGradGuard no_grad;
      const int64_t before = tensor._version();
      local_shards(wrapper)[0].mul_(2);
      EXPECT_EQ(tensor._version(), before + 1);
      wrapper.mul_(2);
      EXPECT_EQ(tensor._version(), before + 2);
      local_shards(to_local(tensor))[0].mul_(2);
      EXPECT_EQ(tensor._version(), before + 3);
      EXPECT_EQ(wrapper._version(), before + 3);
      EXPECT_TRUE(at::equal(full_tensor(tensor), table() * 8));
    }
    const at::Tensor piece = at::ones({2, 16});
    const at::Tensor single = make_local_shards({piece}, {{world.rank() * 2, 0}});
    const int64_t before = single._version();
    piece.zero_();
    EXPECT_EQ(single._version(), before + 1);
  });
}

TEST(LocalShardsConvertTest, RanksOfSeveralPiecesGiveWrappersOnAllRanks) {
  run_ranks(2, [](World& world) {
    const auto pieces = Placement::enumerable({{{0, 0}, {2, 16}, 0}, {{6, 0}, {2, 16}, 0}, {{2, 0}, {4, 16}, 1}});
    const at::Tensor tensor = lay_out(table(), make_mesh({2}), {pieces});
    EXPECT_EQ(local_offsets(to_local(tensor)).size(), world.rank() == 0 ? 2 : 1);
  });
}

}  // namespace
}  // namespace shardwise::local_shards_convert_test
