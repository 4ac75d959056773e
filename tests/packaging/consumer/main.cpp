// main.cpp: a program of a user, with Python's names: on four threads, or as a process of four that torchrun started.
#include <shardwise/modules.h>
#include <shardwise/shardwise.h>
#include <shardwise/threads/thread_world.h>

#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

namespace sw = shardwise;

namespace {

void check(bool is_right, const std::string& what) {
  if (is_right) return;
  std::cerr << what << " differs from dense\n";
  std::exit(1);
}

/// A module with a parameter of its own.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { scale = register_parameter("scale", torch::full({2}, 0.5)); }
  torch::Tensor forward(const torch::Tensor& x) { return x * scale; }

  torch::Tensor scale;
};
TORCH_MODULE(Scale);

const bool scale_is_known = sw::declare_tensors<ScaleImpl>({&ScaleImpl::scale});

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(4, 6), torch::nn::Linear(6, 2), Scale());
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters())
    parameter.copy_(at::arange(parameter.numel()).view(parameter.sizes()).cos());
  return model;
}

/// A table in uneven shards and back.
void move_a_table(const sw::Mesh& mesh) {
  const at::Tensor dense = at::arange(24, at::kFloat).reshape({8, 3});
  const sw::DTensor rows = sw::distribute_tensor(dense, mesh, {sw::Shard(0, {1, 3, 1, 3})});
  check(at::equal(sw::DTensor(rows + rows).redistribute({sw::Shard(1)}).full_tensor(), dense + dense), "a table");
  const sw::DTensor same = sw::DTensor::from_local(rows.to_local(), mesh, rows.placements(), {.shape = sw::Dims{8, 3}});
  check(at::equal(same.redistribute({sw::Replicate()}, {.async_op = true}).to_local(), dense), "a move under way");
  if (mesh.get_rank() == 0) std::cout << to_string(sw::spec_of(rows)->layout()) << '\n';
}

/// One step of a model on 2 x 2 ranks.
void train_a_model() {
  const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
  torch::nn::Sequential model = make_model(), dense = make_model();
  sw::parallelize_module(model, mesh["tp"], {{"0", sw::ColwiseParallel()}, {"1", sw::RowwiseParallel()}});
  sw::fully_shard(model, mesh["dp"]);

  const at::Tensor batch = at::arange(20, at::kFloat).view({5, 4}).sin();
  const at::Tensor own = batch.split_with_sizes({2, 3})[mesh.get_local_rank("dp")];
  torch::optim::SGD optimizer(model->parameters(), 0.1), dense_optimizer(dense->parameters(), 0.1);
  sw::forward(model, own).square().sum().backward();
  (dense->forward(batch).square().sum() / 2).backward();  // gradients are the mean over the ranks of "dp"
  optimizer.step();
  dense_optimizer.step();
  for (const auto& item : model->named_parameters())
    check(at::allclose(sw::full_tensor(item.value().detach()), dense->named_parameters()[item.key()], 1e-4, 1e-5),
          item.key());
  if (mesh.get_rank() == 0)
    std::cout << "trained " << to_string(sw::spec_of(model->named_parameters()["0.weight"])->placements()) << '\n';
}

void save(const torch::nn::Sequential& model, const sw::Mesh& mesh, const std::string& path) {
  torch::nn::Sequential whole = make_model();
  const torch::NoGradGuard no_grad;
  const auto parameters = whole->parameters(), sharded = model->parameters();
  for (size_t i = 0; i < sharded.size(); ++i) parameters[i].copy_(sw::full_tensor(sharded[i]));
  if (mesh.get_rank() == 0) torch::save(whole, path);
}

/// From a file that the first rank alone reads, and back to it.
void load_and_save() {
  const sw::Mesh mesh = sw::init_device_mesh("cpu", {4, 1}, {"dp", "tp"});
  const bool is_first = mesh.get_rank() == 0;
  const std::string path = std::filesystem::temp_directory_path() / ("consumer-" + std::to_string(getpid()) + ".pt");
  torch::nn::Sequential model = make_model(), loaded = make_model();
  const at::Tensor bias = model->named_parameters()["0.bias"];
  if (is_first) {
    torch::nn::init::constant_(bias, 3);
    torch::save(model, path);
    torch::nn::init::zeros_(bias);
  }
  if (mesh.get_rank() == 0) torch::load(model, path);
  for (torch::Tensor& parameter : model->parameters())
    parameter.set_data(sw::distribute_tensor(parameter.detach(), mesh).full_tensor());
  sw::fully_shard(model, mesh["dp"]);
  torch::optim::SGD optimizer(model->parameters(), 0.1);  // of the shards
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  save(model, mesh, path);
  if (!is_first) return;
  torch::load(loaded, path);
  check(at::allclose(loaded->named_parameters()["0.bias"], torch::full({6}, 2.9)), "what was saved");
  std::filesystem::remove(path);
}

void body() {
  move_a_table(sw::init_device_mesh("cpu", {4}));
  train_a_model();
  load_and_save();
}

}  // namespace

int main() {
  check(scale_is_known, "what is known of Scale");
  if (std::getenv("WORLD_SIZE")) {
    body();
  } else {
    sw::run_ranks(4, [](sw::World&) { body(); });
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("libpython") != std::string::npos || line.find("libtorch_python") != std::string::npos) {
      std::cerr << "Python is in the process: " << line << '\n';
      return 1;
    }
}
