// Embedding tables as TorchRec shards them, converted to distributed tensors and back without a copy. No Python runs here.
//
//     $ torchrun --no-python --nproc-per-node 4 build/examples/torchrec_sharding -e row-wise-uneven
//     [8, 16] as [Shard(0, sizes=[1, 3, 1, 3])] on 4 ranks (0-3), 512 bytes
//         0                                                16
//       0 ┌────────────────────────────────────────────────┐
//         │                     rank 0                     │
//         │                                                │
//       1 ├────────────────────────────────────────────────┤
//         │                                                │
//         │                                                │
//         │                     rank 1                     │
//         │                                                │
//         │                                                │
//       4 ├────────────────────────────────────────────────┤
//         │                     rank 2                     │
//         │                                                │
//       5 ├────────────────────────────────────────────────┤
//         │                                                │
//         │                                                │
//         │                     rank 3                     │
//         │                                                │
//         │                                                │
//       8 └────────────────────────────────────────────────┘
//       rank  shape    offsets  bytes  share
//          0  [1, 16]  [0, 0]      64  12.5%
//          1  [3, 16]  [1, 0]     192  37.5%
//          2  [1, 16]  [4, 0]      64  12.5%
//          3  [3, 16]  [5, 0]     192  37.5%
//       imbalance 1.50: ranks 1,3 hold 192 bytes, the mean is 128
//
//     Every rank has its pieces back: same storage, same values, same sizes and offsets.
//
// Other values of -e: row-wise-even, column-wise, grid-wise, table-wise. torchrec_sharding.py prints the same from Python.
#include <shardwise/shardwise.h>

#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace sw = shardwise;

namespace {

using Piece = sw::ShardMetadata;
using Pieces = std::vector<Piece>;

constexpr int64_t kRanks = 4;
constexpr int64_t kColumns = 16;

/// A piece of whole rows on each rank. Its columns begin at 0.
Pieces rows(const std::vector<int64_t>& n_rows) {
  Pieces pieces;
  int64_t begin = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    pieces.push_back({{begin, 0}, {n_rows[rank], kColumns}, rank});
    begin += n_rows[rank];
  }
  return pieces;
}

std::map<std::string, Pieces> examples() {
  const Pieces columns = {// rank 2 comes first, and once more
                          {{0, 0}, {8, 5}, 2},
                          {{0, 5}, {8, 4}, 0},
                          {{0, 9}, {8, 3}, 1},
                          {{0, 12}, {8, 1}, 2},
                          {{0, 13}, {8, 3}, 3}};
  const Pieces grid = {{{0, 0}, {3, 10}, 0}, {{0, 10}, {3, 6}, 1}, {{3, 0}, {5, 10}, 3}, {{3, 10}, {5, 6}, 2}};
  return {{"row-wise-even", rows({2, 2, 2, 2})},
          {"row-wise-uneven", rows({1, 3, 1, 3})},
          {"column-wise", columns},
          {"grid-wise", grid},
          {"table-wise", {}}};
}

/// The rest of `-e`, "row-wise-uneven" without arguments; ends the program where there is no such example.
std::string chosen_example(int argc, char** argv) {
  const std::string example = argc == 3 && std::string(argv[1]) == "-e" ? argv[2] : argc == 1 ? "row-wise-uneven" : "";
  if (examples().contains(example)) return example;
  std::cerr << "Usage: torchrec_sharding [-e EXAMPLE], one of:";
  for (const auto& [name, pieces] : examples()) std::cerr << ' ' << name;
  std::cerr << '\n';
  std::exit(2);
}

/// What TorchRec hands over on this rank: its pieces of `table` and where they stand in it.
at::Tensor local_shards(const at::Tensor& table, const Pieces& pieces) {
  std::vector<at::Tensor> shards;
  std::vector<sw::Dims> offsets;
  for (const auto& [offset, size, rank] : pieces) {
    if (rank != sw::World::current()->rank()) continue;
    shards.push_back(table.narrow(0, offset[0], size[0]).narrow(1, offset[1], size[1]).clone());
    offsets.push_back(offset);
  }
  return sw::make_local_shards(shards, offsets);
}

/// There and back: shards -> distributed tensor -> picture -> the same shards.
void show(const at::Tensor& table, const Pieces& pieces, const sw::MeshPtr& mesh, const sw::Placement& placement) {
  const at::Tensor shards = local_shards(table, pieces);
  const at::Tensor tensor = sw::from_local_shards(
      shards, mesh, {placement}, {.shape = sw::Dims(table.sizes()), .stride = sw::Dims(table.strides())});
  if (mesh->rank() == 0) sw::visualize_sharding(tensor);

  TORCH_CHECK(tensor.sizes() == table.sizes() && tensor.strides() == table.strides());
  const at::Tensor back = sw::to_local(tensor);
  TORCH_CHECK(sw::local_sizes(back) == sw::local_sizes(shards) && sw::local_offsets(back) == sw::local_offsets(shards));
  const auto after = sw::local_shards(back), before = sw::local_shards(shards);
  for (size_t i = 0; i < before.size(); ++i)
    TORCH_CHECK(after[i].data_ptr() == before[i].data_ptr() && at::equal(after[i], before[i]));
  if (mesh->is_member()) TORCH_CHECK(at::equal(sw::full_tensor(tensor), table));
}

sw::MeshPtr mesh_of(std::vector<int64_t> ranks) {
  const auto n_ranks = static_cast<int64_t>(ranks.size());
  return sw::DeviceMesh::create(sw::World::current(), c10::kCPU, {{n_ranks}, std::move(ranks)});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string example = chosen_example(argc, argv);
  const auto world = sw::init_process_group();
  TORCH_CHECK(world->size() == kRanks, "[torchrec_sharding] started with ", world->size(), " ranks: use ", kRanks);
  const at::Tensor table = at::arange(8 * kColumns, at::kFloat).reshape({8, kColumns});
  const sw::Mesh everyone = sw::init_device_mesh("cpu", {kRanks});

  if (example == "table-wise") {  // table i is whole on rank i; the others hold nothing of it, and know its shape
    for (int64_t owner = 0; owner < kRanks; ++owner) {
      const int64_t n_rows = 2 + 2 * owner;
      const Pieces whole = {{{0, 0}, {n_rows, kColumns}, owner}};
      show(table.narrow(0, 0, n_rows), whole, mesh_of({owner}), sw::Replicate());
    }
  } else {
    const Pieces pieces = examples()[example];
    const bool is_by_rows = example.starts_with("row-wise");
    show(table, pieces, everyone, is_by_rows ? sw::Shard(0) : sw::EnumerableShard(pieces));
  }

  // A sum over the ranks is there when all of them are.
  sw::full_tensor(sw::from_local(at::ones({1}), everyone, {sw::Partial()}));
  if (world->rank() == 0)
    std::cout << "Every rank has its pieces back: same storage, same values, same sizes and offsets.\n";
}
