// tests/shardwise/models.h: torch::nn models, and the same with the same parameters on every rank.
#pragma once

#include "shardwise/modules.h"
#include "shardwise/shardwise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

namespace shardwise {

/// x + down(gelu(up(norm(x)))).
struct MlpBlockImpl : torch::nn::Module {
  MlpBlockImpl(int64_t width, int64_t hidden)
      : norm(torch::nn::LayerNormOptions({width})), up(width, hidden), down(hidden, width) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(MlpBlock);

/// Logits of the table's own rows, which are its weight: one parameter in two modules.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& rows) { weight = register_parameter("weight", rows); }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }

  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

struct WordsImpl : torch::nn::Module {
  WordsImpl(int64_t n_words, int64_t width, int64_t hidden, int64_t n_layers)
      : table(n_words, width), head(table->weight) {
    register_module("table", table);
    register_module("layers", layers);
    register_module("head", head);
    for (int64_t i = 0; i < n_layers; ++i) layers->push_back(MlpBlock(width, hidden));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = table(ids);
    for (const auto& layer : *layers) x = layer->as<MlpBlock>()->forward(x);
    return head(x);
  }

  torch::nn::Embedding table;
  torch::nn::ModuleList layers;
  TiedHead head;
};
TORCH_MODULE(Words);

/// A class whose parameter nobody declared.
struct UndeclaredImpl : torch::nn::Module {
  UndeclaredImpl() { scale = register_parameter("scale", at::ones({4}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) { return x * scale; }

  at::Tensor scale;
};
TORCH_MODULE(Undeclared);

using Values = std::vector<at::Tensor>;

/// The values of a new model's parameters: to be made before ranks are, which share the generator.
template <class Model>
Values values_of(const Model& model) {
  Values values;
  for (const at::Tensor& parameter : model->parameters())
    values.push_back(at::randn_like(parameter.to(at::kDouble)) / 2);
  return values;
}

/// `model` in double precision, with these values.
template <class Model>
Model with_values(Model model, const Values& values) {
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  auto parameters = model->parameters();
  EXPECT_EQ(parameters.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
  return model;
}

inline at::Tensor whole_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

inline void expect_near(const at::Tensor& ours, const at::Tensor& dense, const std::string& what) {
  const at::Tensor all = whole_of(ours);
  ASSERT_EQ(all.sizes(), dense.sizes()) << what;
  EXPECT_TRUE(at::allclose(all, dense, 1e-9, 1e-11)) << what << ": " << (all - dense).abs().max();
}

/// Every parameter and its gradient, which must be laid out as the parameter.
inline void expect_same_parameters(torch::nn::Module& ours, torch::nn::Module& dense, const std::string& what) {
  const auto wanted = dense.named_parameters();
  for (const auto& item : ours.named_parameters()) {
    const at::Tensor &parameter = item.value(), &expected = wanted[item.key()];
    const std::string name = what + " " + item.key();
    expect_near(parameter, expected, name);
    ASSERT_EQ(parameter.grad().defined(), expected.grad().defined()) << name;
    if (!parameter.grad().defined()) continue;
    expect_near(parameter.grad(), expected.grad(), name + ".grad");
    if (is_dtensor(parameter)) {
      EXPECT_EQ(spec_of(parameter.grad())->placements(), spec_of(parameter)->placements()) << name;
    }
  }
}

}  // namespace shardwise
