// Lookups in an embedding table that is sharded over four ranks: by rows, by columns, in bags, with max_norm and with padding. No Python
// runs here.
//
// The program calls libtorch's own F::embedding and F::embedding_bag. Row r of a table holds r + 0.00, r + 0.01, r + 0.02 and so on.
// Every result is compared with the same lookup in the whole table.
//
//     $ torchrun --no-python --nproc-per-node 4 build/examples/sharded_embedding
//     Rows: ten of them on four ranks, ids sharded by batch. A rank gets its rows from those that have them.
//       rank        0             1             2             3
//       has rows    0 1 2         3 4 5         6 7 8         9
//       asks for    7 7           2 0           9 9           4 1
//       gets        7.00 7.00     2.00 0.00     9.00 9.00     4.00 1.00     their first column
//       gradient    1 1 1         0 1 0         0 2 0         2             how often its rows were asked for
//
//     Columns: 17 of them on four ranks, all ids on each. A rank finds its columns of all rows.
//       rank        0             1             2             3
//       has columns 0 to 4        5 to 9        10 to 14      15 and 16
//       asks for    3 1 5 5       3 1 5 5       3 1 5 5       3 1 5 5
//       finds       3.00 1.00     3.05 1.05     3.10 1.10     3.15 1.15     its first, of the first two
//       and gets    row 3         row 1         row 5         row 5         all columns of one, redistributed
//
//     Bags: rows are pooled where they are, and only what came out of each bag is sent.
//       rank        0             1             2             3
//       has rows    0             1 2 3 4                     5 6 7 8 9
//       wants bag   7 7 1                       9             4 1 0
//       sum         15.00         0.00          9.00          5.00          the first column
//       mean        5.00          0.00          9.00          1.67
//       max         7.00          0.00          9.00          4.00
//
//     max_norm: rows that are asked for are made no longer than 4, by the norm of their columns on all ranks.
//       row         0             1             2             3             4             5
//       asked for   no            yes           no            yes           no            yes
//       norm        0.04          2.03          4.03          6.03          8.03          10.03
//       afterwards  0.04          2.03          4.03          4.00          8.03          4.00
//
//     Padding: row 0 stands for no word. Whoever has it, it gets no gradient.
//       rank        0             1             2             3
//       has row     0             1             2             3
//       asks for    3 0           1 0           1 2           0 0
//       gradient    0             2             1             1
//
// sharded_embedding.py prints the same from Python.
#include <shardwise/shardwise.h>

#include <torch/nn/functional/embedding.h>
#include <torch/types.h>

#include <fmt/format.h>

#include <iostream>
#include <string>
#include <vector>

namespace sw = shardwise;
namespace F = torch::nn::functional;

namespace {

using Cells = std::vector<std::string>;

constexpr int64_t kRanks = 4;
const sw::Placement kReplicate = sw::Replicate(), kByRows = sw::Shard(0), kByColumns = sw::Shard(1);

at::Tensor table_of(int64_t n_rows, int64_t n_columns) {
  return at::arange(n_rows).unsqueeze(1) + at::arange(n_columns) / 100;
}

at::Tensor ids_of(const std::vector<int64_t>& ids) { return torch::tensor(ids); }

/// This rank's part of what every rank has.
at::Tensor distribute(const at::Tensor& tensor, const sw::Placement& placement) {
  static const sw::Mesh mesh = sw::init_device_mesh("cpu", {kRanks});
  return sw::distribute_tensor(tensor, mesh, {placement}, /*src_data_rank=*/std::nullopt);
}

at::Tensor by_batch(const at::Tensor& tensor) { return sw::redistribute(tensor, {kByRows}); }

void check_close(const at::Tensor& ours, const at::Tensor& dense) { TORCH_CHECK(at::allclose(ours, dense)); }

bool is_first() { return sw::World::current()->rank() == 0; }

void title(const std::string& text) {
  if (is_first()) std::cout << '\n' << text << '\n';
}

/// A cell for each rank.
void line(const std::string& label, const Cells& cells, const std::string& note = "") {
  std::string text = fmt::format("  {:12}", label);
  for (const std::string& cell : cells) text += fmt::format("{:14}", cell);
  text += note;
  text.erase(text.find_last_not_of(' ') + 1);
  if (is_first()) std::cout << text << '\n';
}

std::string text(const at::Tensor& values, int digits = 0) {
  std::string text;
  for (int64_t i = 0; i < values.numel(); ++i)
    text += fmt::format("{}{:.{}f}", i == 0 ? "" : " ", values[i].item<double>(), digits);
  return text;
}

/// A cell for each of `parts`.
Cells texts(const std::vector<at::Tensor>& parts, int digits = 0) {
  Cells cells;
  for (const at::Tensor& part : parts) cells.push_back(text(part.reshape(-1), digits));
  return cells;
}

void rows() {
  title("Rows: ten of them on four ranks, ids sharded by batch. A rank gets its rows from those that have them.");
  const at::Tensor values = table_of(10, 3), batch = ids_of({7, 7, 2, 0, 9, 9, 4, 1}).view({4, 2});
  const at::Tensor table = distribute(values, kByRows).requires_grad_();

  const at::Tensor found = by_batch(F::embedding(distribute(batch, kByRows), table));
  found.sum().backward();

  const at::Tensor result = sw::full_tensor(found.detach());
  check_close(result, F::embedding(batch, values));
  line("rank", {"0", "1", "2", "3"});
  line("has rows", texts(at::arange(10).split_with_sizes({3, 3, 3, 1})));
  line("asks for", texts(batch.unbind()));
  line("gets", texts(result.select(2, 0).unbind(), 2), "their first column");
  line("gradient", texts(sw::full_tensor(table.grad()).select(1, 0).split_with_sizes({3, 3, 3, 1})),
       "how often its rows were asked for");
}

void columns() {
  title("Columns: 17 of them on four ranks, all ids on each. A rank finds its columns of all rows.");
  const at::Tensor values = table_of(6, 17), batch = ids_of({3, 1, 5, 5});

  const at::Tensor found = F::embedding(distribute(batch, kReplicate), distribute(values, kByColumns));
  const at::Tensor whole_rows = sw::full_tensor(by_batch(found));

  TORCH_CHECK(sw::spec_of(found)->placements()[0].is_shard(1));
  check_close(whole_rows, F::embedding(batch, values));
  line("rank", {"0", "1", "2", "3"});
  line("has columns", {"0 to 4", "5 to 9", "10 to 14", "15 and 16"});
  line("asks for", Cells(kRanks, text(batch)));
  Cells firsts, names;
  for (const at::Tensor& part : sw::full_tensor(found).split(5, 1))
    firsts.push_back(text(part.slice(0, 0, 2).select(1, 0), 2));
  for (const at::Tensor& row : whole_rows.unbind()) names.push_back("row " + text(row.slice(0, 0, 1)));
  line("finds", firsts, "its first, of the first two");
  line("and gets", names, "all columns of one, redistributed");
}

void bags() {
  title("Bags: rows are pooled where they are, and only what came out of each bag is sent.");
  const at::Tensor values = table_of(10, 3), flat = ids_of({7, 7, 1, 9, 4, 1, 0}), starts = ids_of({0, 3, 3, 4});
  const at::Tensor table = distribute(values, sw::Shard(0, {1, 4, 0, 5}));
  const at::Tensor ids = distribute(flat, kReplicate), offsets = distribute(starts, kReplicate);

  line("rank", {"0", "1", "2", "3"});
  line("has rows", texts(at::arange(10).split_with_sizes({1, 4, 0, 5})));
  line("wants bag", texts(flat.split_with_sizes({3, 0, 1, 3})));
  const auto pool = [&](const std::string& name, const F::EmbeddingBagFuncOptions& mode) {
    auto ours = mode, dense = mode;
    const at::Tensor pooled = sw::full_tensor(by_batch(F::embedding_bag(ids, table, ours.offsets(offsets))));
    check_close(pooled, F::embedding_bag(flat, values, dense.offsets(starts)));
    line(name, texts(pooled.select(1, 0).unbind(), 2), name == "sum" ? "the first column" : "");
  };
  pool("sum", F::EmbeddingBagFuncOptions().mode(torch::kSum));
  pool("mean", F::EmbeddingBagFuncOptions().mode(torch::kMean));
  pool("max", F::EmbeddingBagFuncOptions().mode(torch::kMax));
}

void max_norm() {
  title("max_norm: rows that are asked for are made no longer than 4, by the norm of their columns on all ranks.");
  const at::Tensor values = table_of(6, 4), batch = ids_of({5, 1, 3, 5}), dense = values.clone();
  const at::Tensor table = distribute(values, kByColumns);

  const auto options = F::EmbeddingFuncOptions().max_norm(4);
  F::embedding(distribute(batch, kReplicate), table, options);

  F::embedding(batch, dense, options);
  const at::Tensor after = sw::full_tensor(table);
  check_close(after, dense);
  Cells asked;
  for (int64_t row = 0; row < 6; ++row) asked.emplace_back(batch.eq(row).any().item<bool>() ? "yes" : "no");
  line("row", texts(at::arange(6).unbind()));
  line("asked for", asked);
  line("norm", texts(values.norm(2, 1).unbind(), 2));
  line("afterwards", texts(after.norm(2, 1).unbind(), 2));
}

void padding() {
  title("Padding: row 0 stands for no word. Whoever has it, it gets no gradient.");
  const at::Tensor batch = ids_of({3, 0, 1, 0, 1, 2, 0, 0}).view({4, 2});
  const at::Tensor dense = table_of(4, 3).requires_grad_(),
                   table = distribute(table_of(4, 3), kByRows).requires_grad_();

  const auto options = F::EmbeddingFuncOptions().padding_idx(0);
  by_batch(F::embedding(distribute(batch, kByRows), table, options)).sum().backward();

  F::embedding(batch, dense, options).sum().backward();
  const at::Tensor grad = sw::full_tensor(table.grad());
  check_close(grad, dense.grad());
  line("rank", {"0", "1", "2", "3"});
  line("has row", {"0", "1", "2", "3"});
  line("asks for", texts(batch.unbind()));
  line("gradient", texts(grad.select(1, 0).unbind()));
}

}  // namespace

int main() {
  const auto world = sw::init_process_group();
  TORCH_CHECK(world->size() == kRanks, "[sharded_embedding] started with ", world->size(), " ranks: use ", kRanks);
  for (const auto part : {rows, columns, bags, max_norm, padding}) part();
}
