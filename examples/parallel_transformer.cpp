// A transformer of torch::nn modules on 2 x 2 ranks: tensor parallelism along "tp", FSDP along "dp". No Python runs here.
//
//     $ torchrun --no-python --nproc-per-node 4 build/examples/parallel_transformer
//     words.weight                      [Shard(0), Shard(0)]
//     positions.weight                  [Shard(0)]
//     layers.0.attention.query.weight   [Shard(0), Shard(0)]
//     layers.0.down.weight              [Shard(0), Shard(1)]
//     layers.0.norm.bias                [Shard(0)]
//     bytes of parameters on this rank: 6212 of 23180
//
//     step   loss  dense
//        4  2.061  2.061
//        9  1.046  1.046
//       14  0.336  0.336
//       19  0.053  0.053
//
// The model is written for one process. parallelize_module() and fully_shard() replace its parameters by DTensors. forward() calls it with
// this rank's part of the batch: 3 sequences at "dp" coordinate 0, 5 at coordinate 1. The dense loss is the loss of the unsharded model on
// all 8 sequences.
#include <shardwise/modules.h>
#include <shardwise/shardwise.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <fmt/format.h>

#include <iostream>

namespace sw = shardwise;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

constexpr int64_t kWords = 19, kWidth = 16, kHidden = 40, kHeads = 4, kLayers = 2, kLength = 12, kBatch = 8;

struct AttentionImpl : nn::Module {
  AttentionImpl() {
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("out", out);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = [&](const torch::Tensor& y) {
      return y.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const torch::Tensor mixed =
        at::scaled_dot_product_attention(heads(query(x)), heads(key(x)), heads(value(x)), {}, 0.0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }

  nn::Linear query{kWidth, kWidth}, key{kWidth, kWidth}, value{kWidth, kWidth}, out{kWidth, kWidth};
};
TORCH_MODULE(Attention);

struct LayerImpl : nn::Module {
  LayerImpl() {
    register_module("attention_norm", attention_norm);
    register_module("attention", attention);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + attention(attention_norm(x));
    return y + down(torch::gelu(up(norm(y))));
  }

  nn::LayerNorm attention_norm{nn::LayerNormOptions({kWidth})}, norm{nn::LayerNormOptions({kWidth})};
  Attention attention;
  nn::Linear up{kWidth, kHidden}, down{kHidden, kWidth};
};
TORCH_MODULE(Layer);

struct TransformerImpl : nn::Module {
  TransformerImpl() {
    register_module("words", words);
    register_module("positions", positions);
    register_module("layers", layers);
    register_module("head", head);
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Layer());
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = words(ids) + positions(torch::arange(ids.size(1)));  // a plain tensor is a replica in here
    for (const auto& layer : *layers) x = sw::forward(*layer->as<Layer>(), x);
    return head(x);
  }

  nn::Embedding words{kWords, kWidth}, positions{kLength, kWidth};
  nn::ModuleList layers;
  nn::Linear head{kWidth, kWords};
};
TORCH_MODULE(Transformer);

/// A model that is the same on every rank.
Transformer make_model() {
  torch::manual_seed(0);
  return {};
}

/// The sum over all words.
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return F::cross_entropy(logits.flatten(0, 1), targets.flatten(), F::CrossEntropyFuncOptions().reduction(torch::kSum));
}

/// Sequences that a small model learns fast: each id is three times the one before, plus one.
torch::Tensor make_batch() {
  torch::Tensor ids = torch::empty({kBatch, kLength + 1}, torch::kLong);
  ids.select(1, 0).copy_(torch::arange(kBatch));
  for (int64_t i = 0; i < kLength; ++i) ids.select(1, i + 1).copy_((ids.select(1, i) * 3 + 1).remainder(kWords));
  return ids;
}

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t n_bytes = 0;
  for (const torch::Tensor& tensor : tensors)
    for (const torch::Tensor& piece : sw::is_dtensor(tensor) ? sw::to_pieces(tensor) : std::vector{tensor})
      n_bytes += static_cast<int64_t>(piece.nbytes());
  return n_bytes;
}

}  // namespace

int main() {
  const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
  const bool is_first = mesh.get_rank() == 0;
  Transformer model = make_model(), dense = make_model();

  sw::parallelize_module(model, mesh["tp"],
                         {{"words", sw::RowwiseParallel()},
                          {"layers.*.attention.[qkv]*", sw::ColwiseParallel()},
                          {"layers.*.attention.out", sw::RowwiseParallel()},
                          {"layers.*.up", sw::ColwiseParallel()},
                          {"layers.*.down", sw::RowwiseParallel()},
                          {"head", sw::ColwiseParallel()}});
  // Layers are gathered one after the other, each by the forward() that calls it; then what is not in them.
  for (const auto& layer : *model->layers) sw::fully_shard(*layer, mesh["dp"]);
  sw::fully_shard(model, mesh["dp"]);

  const auto parameters = model->named_parameters();
  for (const std::string name : {"words.weight", "positions.weight", "layers.0.attention.query.weight",
                                 "layers.0.down.weight", "layers.0.norm.bias"})
    if (is_first)
      std::cout << fmt::format("{:34}", name) << to_string(sw::DTensor(parameters[name]).placements()) << '\n';
  if (is_first)
    std::cout << fmt::format("bytes of parameters on this rank: {} of {}\n\n", bytes_of(model->parameters()),
                             bytes_of(dense->parameters()));

  const torch::Tensor batch = make_batch();
  const auto own = batch.split_with_sizes({3, 5})[mesh.get_local_rank("dp")];
  const torch::Tensor ids = own.narrow(1, 0, kLength);
  const torch::Tensor targets = own.narrow(1, 1, kLength);
  constexpr double kAll = kBatch * kLength;
  torch::optim::AdamW optimizer(model->parameters(), 0.01), dense_optimizer(dense->parameters(), 0.01);
  if (is_first) std::cout << "step   loss  dense\n";
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(sw::full_tensor(sw::forward(model, ids)), targets);
    (loss * (mesh.size(0) / kAll)).backward();
    optimizer.step();

    dense_optimizer.zero_grad();
    const torch::Tensor expected = loss_of(dense(batch.narrow(1, 0, kLength)), batch.narrow(1, 1, kLength)) / kAll;
    expected.backward();
    dense_optimizer.step();

    const auto sum = sw::DTensor::from_local(loss.detach(), mesh["dp"], {sw::Partial("sum")});
    const double value = sum.full_tensor().item<double>() / kAll;
    TORCH_CHECK(std::abs(value - expected.item<double>()) < 1e-3, "step ", step, ": ", value, " is not dense");
    if (is_first && step % 5 == 4)
      std::cout << fmt::format("{:4}  {:.3f}  {:.3f}\n", step, value, expected.item<double>());
  }
}
