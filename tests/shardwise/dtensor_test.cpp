// Python's names in C++: placements, meshes, DTensor and the factories, against the dense tensors.
#include "shardwise/shardwise.h"

#include "runtime/api/rank_generator.h"
#include "runtime/tensor/device_mesh.h"
#include "shardwise/modules.h"
#include "tests/support/either_world.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

namespace sw = shardwise;

namespace shardwise::dtensor_test {
namespace {

const at::Tensor kDense = at::arange(30, at::kDouble).reshape({10, 3});

template <class T>
std::string text(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

TEST(NamesTest, PlacementsAreSpelledAsInPython) {
  EXPECT_EQ(to_string(sw::Shard(0)), "Shard(0)");
  EXPECT_EQ(to_string(sw::Shard(-1)), "Shard(-1)");
  EXPECT_EQ(to_string(sw::Shard(0, {1, 3, 1, 3})), "Shard(0, sizes=[1, 3, 1, 3])");
  EXPECT_EQ(to_string(sw::Replicate()), "Replicate()");
  EXPECT_EQ(to_string(sw::Partial()), "Partial(sum)");
  EXPECT_EQ(text(sw::Shard(0)), "Shard(0)");
  EXPECT_EQ(text(Placements{sw::Shard(0), sw::Replicate()}), "[Shard(0), Replicate()]");
  EXPECT_EQ(to_string(sw::Partial("max")), "Partial(max)");
  EXPECT_EQ(sw::EnumerableShard({{{0, 0}, {8, 5}, 2}, {{0, 5}, {8, 4}, 0}}).pieces().size(), 2);
  EXPECT_EQ(to_string(sw::RaggedShard({0, 1}, {2, 3, 0, 5})), "RaggedShard(dims=(0, 1), local_units=(2, 3, 0, 5))");
  expect_error("Use one of sum, avg", error_of<c10::ValueError>([] { sw::Partial("most"); }));
}

TEST(NamesTest, AMeshIsSlicedByTheNamesOfItsDims) {
  run_ranks(4, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    EXPECT_EQ(text(mesh), "(dp=2, tp=2)");
    EXPECT_EQ(mesh.shape(), (Dims{2, 2}));
    EXPECT_EQ(mesh.size(-1), 2);
    EXPECT_EQ(mesh.get_local_rank("dp"), world.rank() / 2);
    EXPECT_EQ(mesh.get_local_rank("tp"), world.rank() % 2);
    EXPECT_EQ(*mesh.get_coordinate(), (Dims{world.rank() / 2, world.rank() % 2}));

    const sw::Mesh tp = mesh["tp"];
    EXPECT_EQ(tp->grid().ranks, (std::vector<int64_t>{world.rank() / 2 * 2, world.rank() / 2 * 2 + 1}));
    EXPECT_EQ(tp.get_local_rank(), world.rank() % 2);
    EXPECT_EQ(tp.root(), mesh);
    EXPECT_EQ((mesh[{"dp", "tp"}]), mesh);
    EXPECT_EQ(text(mesh[{"tp", "dp"}]), "(tp=2, dp=2: ranks [0, 2, 1, 3])");
    const MeshPtr inner = mesh;  // as functions of the inner rooms take it
    EXPECT_EQ(inner, mesh["dp"].root());
  });
}

TEST(NamesTest, AProgramOfOneProcessIsToldHowToStartMore) {
  const World alone(0, 1, nullptr, nullptr);
  expect_error(
      "[device_mesh] the mesh [2, 2] needs 4 ranks, and this program is one process. Start it with torchrun "
      "--nproc-per-node 4 program.py, or a C++ program with torchrun --no-python --nproc-per-node 4 ./program.",
      error_of<c10::ValueError>([&] { check_has_ranks(alone, Dims{2, 2}); }));
  check_has_ranks(alone, Dims{1, 1});
}

template <class Index>
concept Indexes = requires(const sw::Mesh& mesh, Index index) { mesh[index]; };
static_assert(Indexes<const char*> && !Indexes<int>);

TEST(NamesTest, WhatAMeshCannotBeIsAnErrorOnAllRanks) {
  run_ranks(2, [](World&) {
    const auto error = [](const std::function<void()>& call) { return error_of<c10::ValueError>(call); };
    expect_error("has an index", error([] { sw::init_device_mesh("cuda:0", {2}); }));
    expect_error("an extent below 1", error([] { sw::init_device_mesh("cpu", {2, 0}); }));
    expect_error("", error([] { sw::init_device_mesh("cpu", {3}); }));
    expect_error("the mesh [3] needs 3 ranks, and the world has 2", error([] { sw::init_device_mesh("cpu", {3}); }));
    expect_error("needs 1000000000000 ranks", error([] { sw::init_device_mesh("cpu", {1000000000000}); }));
    expect_error("needs 2^63 or more ranks", error([] { sw::init_device_mesh("cpu", {1LL << 32, 1LL << 32}); }));
    for (const char* device : {"xpu", "gpu"})
      expect_error("is not supported. Use \"cpu\"", error([&] { sw::init_device_mesh(device, {2}); }));
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 1}, {"dp", "tp"});
    expect_error("\"pp\"", error([&] { mesh["pp"]; }));
    expect_error("Pass the name of one", error([&] { mesh.get_local_rank(); }));
    expect_error("Make it with a name for each", error([] { sw::init_device_mesh("cpu", {2, 1}).get_local_rank(); }));
    expect_error("null pointer", error([] { sw::Mesh{MeshPtr()}; }));
    expect_error("Use a dim in [-2, 2)", error_of<c10::IndexError>([&] { mesh.size(2); }));
    const sw::Mesh one = sw::init_device_mesh("cpu", {1});
    if (one->rank() == 1) expect_error("rank 1 is outside the mesh", error([&] { one.get_local_rank(); }));
  });
}

TEST(DTensorTest, ThereAndBackIsDenseForEveryLayout) {
  run_ranks(4, [](World&) {
    const sw::Mesh line = sw::init_device_mesh("cpu", {4}), grid = sw::init_device_mesh("cpu", {2, 2});
    const auto pieces = sw::EnumerableShard({{{0, 0}, {10, 1}, 3}, {{0, 1}, {4, 2}, 0}, {{4, 1}, {6, 2}, 3}});
    // mesh, placements
    const std::vector<std::pair<sw::Mesh, Placements>> cases = {
        {line, {sw::Shard(0)}},
        {line, {sw::Shard(0, {1, 4, 0, 5})}},
        {line, {sw::Shard(-1)}},
        {line, {sw::Partial()}},
        {line, {pieces}},
        {line, {sw::RaggedShard({0, 1}, {2, 3, 0, 5})}},
        {line, {}},
        {grid, {sw::Shard(0), sw::Shard(0)}},
        {grid, {sw::Shard(1), sw::Partial("avg")}},
        {grid, {sw::RaggedShard({0, 1}, {1, 2}), sw::Shard(0)}},
    };
    for (const auto& [mesh, placements] : cases) {
      const sw::DTensor tensor = sw::distribute_tensor(kDense, mesh, placements);
      EXPECT_EQ(tensor.device_mesh(), mesh);
      const auto expected =
          Layout({10, 3}, mesh->grid_ptr(), placements.empty() ? Placements(mesh.ndim()) : placements);
      EXPECT_EQ(tensor.placements(), expected.placements());
      EXPECT_TRUE(at::equal(tensor.full_tensor(), kDense));
      EXPECT_TRUE(at::equal(sw::DTensor(tensor + tensor).full_tensor(), kDense + kDense));  // operators take it
      const sw::DTensor rows = tensor.redistribute(Placements(mesh.ndim(), sw::Shard(0)));
      EXPECT_TRUE(at::equal(rows.full_tensor(), kDense));
    }
  });
}

TEST(DTensorTest, PiecesAreThisRanksAndAliased) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3});
    const int64_t n_rows = world.rank() * 2;  // none on rank 0
    const at::Tensor local = at::full({n_rows, 3}, static_cast<double>(world.rank()), at::kDouble);
    const sw::DTensor tensor = sw::DTensor::from_local(local, mesh, {sw::Shard(0, {0, 2, 4})}, {.shape = Dims{6, 3}});
    EXPECT_EQ(tensor.sizes(), (Dims{6, 3}));
    local.fill_(7);
    EXPECT_TRUE(at::equal(tensor.to_local(), local));
    const auto pieces = sw::EnumerableShard({{{0, 0}, {3, 3}, 1}, {{3, 0}, {3, 3}, 1}});
    EXPECT_EQ(tensor.redistribute({pieces}).to_pieces().size(), world.rank() == 1 ? 2 : 0);
  });
}

TEST(DTensorTest, GradientsFlowThroughItsMethods) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3});
    const sw::DTensor x = sw::distribute_tensor(kDense, mesh, {sw::Shard(0)}).requires_grad_();
    EXPECT_FALSE(x.grad().defined());
    (x.redistribute({sw::Shard(1)}) * x).sum().backward();
    EXPECT_TRUE(at::equal(x.grad().full_tensor(), 2 * kDense));
    EXPECT_EQ(x.grad().placements(), x.placements());
    const at::Tensor own = at::ones({2}, at::kDouble).set_requires_grad(true);
    const sw::DTensor sum = sw::DTensor::from_local(own, mesh, {sw::Partial()});
    (sum.full_tensor() * (world.rank() + 1)).sum().backward();
    EXPECT_TRUE(own.grad().defined());
  });
}

TEST(DTensorTest, APlainTensorIsNone) {
  const std::string error = error_of<c10::TypeError>([] { sw::DTensor{at::ones({2, 3})}; });
  expect_error("[DTensor] got a plain tensor of shape [2, 3]", error);
  expect_error("distribute_tensor", error);
  EXPECT_FALSE(sw::DTensor().defined());
  EXPECT_FALSE(sw::DTensor(at::Tensor()).defined());
  EXPECT_EQ(sizeof(sw::DTensor), sizeof(at::Tensor));
}

TEST(DTensorTest, LayoutsOfOneAreArgumentsForAnother) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const sw::DTensor rows = sw::distribute_tensor(kDense, mesh, {sw::Shard(0)}), whole = sw::ones({10, 3}, mesh);
    const at::Tensor sum = rows + rows;
    EXPECT_EQ(sw::placements(sum), rows.placements());
    EXPECT_EQ(sw::device_mesh(sum), mesh);
    EXPECT_EQ(whole.redistribute(rows.placements()).placements(), rows.placements());
    EXPECT_EQ(sw::distribute_tensor(kDense, mesh, sw::placements(sum)).placements(), rows.placements());
    EXPECT_NE(error_of<c10::TypeError>([] { sw::placements(kDense); }), "");
  });
}

TEST(DTensorTest, TorchsSaveWouldWriteAPieceAndIsAnError) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const at::Tensor rows = sw::distribute_tensor(kDense, mesh, {sw::Shard(0)});
    torch::nn::Linear layer(4, 4);
    sw::fully_shard(layer, mesh);
    const std::string words =
        "[save] got a DTensor, Double [10, 3] as [Shard(0)] on (2), but a file would hold only this rank's piece";
    std::ostringstream file;
    expect_error(words, error_of<c10::NotImplementedError>([&] { torch::save(rows, file); }));
    expect_error(words, error_of<c10::NotImplementedError>([&] { torch::pickle_save(rows); }));
    expect_error("Save the result of full_tensor()",
                 error_of<c10::NotImplementedError>([&] { torch::save(layer, file); }));
    std::stringstream whole;
    torch::save(sw::full_tensor(rows), whole);
    at::Tensor loaded;
    torch::load(loaded, whole);
    EXPECT_TRUE(at::equal(loaded, kDense));
  });
}

TEST(DTensorTest, OneWhoseBaseAPlainTensorWasAssignedToPrintsAsThat) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    sw::DTensor tensor = sw::ones({2, 2}, mesh);
    static_cast<at::Tensor&>(tensor) = at::ones({2});
    EXPECT_EQ(text(tensor), text(at::ones({2})));
  });
}

TEST(DTensorTest, FactoriesFillEachRanksPart) {
  run_ranks(3, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3});
    const Placements uneven{sw::Shard(0, {4, 0, 6})};
    EXPECT_TRUE(at::equal(sw::zeros({10, 3}, mesh, uneven).full_tensor(), at::zeros({10, 3})));
    EXPECT_TRUE(at::equal(sw::ones({10, 3}, mesh, uneven, torch::kLong).full_tensor(), at::ones({10, 3}, at::kLong)));
    EXPECT_TRUE(at::equal(sw::full({10, 3}, 7, mesh, uneven).full_tensor(), at::full({10, 3}, 7, at::kLong)));
    EXPECT_TRUE(at::equal(sw::full({2}, 0.5, mesh, {}, torch::kDouble).full_tensor(), at::full({2}, 0.5, at::kDouble)));
    EXPECT_EQ(sw::empty({10, 3}, mesh, uneven).scalar_type(), at::kFloat);
    EXPECT_EQ(sw::empty({10, 3}, mesh, uneven, torch::kInt).scalar_type(), at::kInt);
    const auto options = torch::dtype(torch::kDouble).requires_grad(true);
    seed_rank(5);
    const sw::DTensor sharded = sw::rand({10, 3}, mesh, uneven, options);
    seed_rank(5);
    const sw::DTensor whole = sw::rand({10, 3}, mesh, {}, torch::kDouble);
    EXPECT_TRUE(sharded.requires_grad() && sharded.is_leaf());
    EXPECT_TRUE(at::equal(sw::full_tensor(sharded.detach()), whole.to_local()));
    EXPECT_EQ(sw::randn({4}, mesh, {sw::Shard(0)}, torch::kDouble).scalar_type(), at::kDouble);
  });
}

TEST(DTensorTest, FactoriesRefuseWhatTheyCannotMake) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    expect_error("Partial", error_of<c10::ValueError>([&] { sw::zeros({4}, mesh, {sw::Partial()}); }));
    expect_error("is not the mesh's", error_of<c10::ValueError>([&] { sw::ones({4}, mesh, {}, torch::kMeta); }));
    expect_error("cannot be distributed",
                 error_of<c10::ValueError>([&] { sw::rand({4}, mesh, {}, torch::layout(torch::kSparse)); }));
    expect_error("draws no", error_of<c10::TypeError>([&] { sw::randn({4}, mesh, {}, torch::kLong); }));
  });
}

TEST(DTensorTest, PrintsItsLayoutAndThisRanksPart) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const sw::DTensor tensor = sw::distribute_tensor(at::arange(3), mesh, {sw::Shard(0, {3, 0})}, std::nullopt);
    const std::string shown = text(tensor);
    EXPECT_EQ(shown.substr(0, shown.find('\n')), "Long [3] as [Shard(0, sizes=[3, 0])] on (2)");
    expect_error(world.rank() == 0   ? "rank 0 has [3] from [0]\n 0\n 1\n 2"
                 : world.rank() == 1 ? "rank 1 has [0] from [3]"
                                     : "rank 2 has none of it",
                 shown);
    EXPECT_EQ(text(sw::DTensor()), text(at::Tensor()));
  });
}

}  // namespace
}  // namespace shardwise::dtensor_test
