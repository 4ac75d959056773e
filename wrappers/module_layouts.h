// wrappers/module_layouts.h: how a module's parameters, inputs and outputs are laid out along one mesh dim, as a value, and the placements of layers
// whose weight is sharded:
//
//                          weight      bias           input          output
//   colwise   linear       Shard(0)    Shard(0)       Replicate()    Shard(-1)
//             embedding    Shard(1)    -              Replicate()    Shard(-1)
//   rowwise   linear       Shard(1)    Replicate()    Shard(-1)      Replicate(), of a sum over the ranks
//             embedding    Shard(0)    -              Replicate()    Replicate(), likewise
//
// If a layout of the sharded features is given, such as Shard(-1, sizes=...), the weight and the bias follow it.
//
// The styles of parallelize_module(), in C++ and in Python, and the model-parallel layers (parallel_modules.h) take their placements from this
// table.
#pragma once

#include "placements/placement.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// How one input or output of a module is laid out.
struct ValueLayout {
  std::optional<Placement> of_plain = {};  // placement of a plain tensor: a piece or a replica; nullopt: unchanged
  std::optional<Placement> wanted = {};    // placement that it gets; nullopt: unchanged
  std::optional<int64_t> n_features = {};  // size of its last dim, if the module knows it
};

/// The layouts of one module, by a style.
struct ModuleLayouts {
  std::vector<std::pair<std::string, Placement>> parameters = {};  // by name in the module
  std::vector<ValueLayout> inputs = {};                            // by position; further inputs are unchanged
  std::vector<ValueLayout> outputs = {};                           // likewise
  bool use_local_inputs = false;                                   // the module gets plain pieces
  bool use_local_output = false;                                   // the caller gets plain pieces
};

/// A linear layer has a weight [out, in] and a bias [out]; an embedding a weight [rows, columns].
enum class LayerKind : uint8_t { kLinear, kEmbedding };

/// Colwise: each rank has some output features, or some columns. Rowwise: some input features, or some rows, and the results are sums.
enum class LayerSplit : uint8_t { kColwise, kRowwise };

/// One row of the table above.
struct LayerPlacements {
  Placement weight, bias, input, output;
};
/// `features`: the layout of a colwise layer's output, or of a rowwise linear layer's input. If it divides the last dim, counted as -1, the layer's
/// features are divided in the same way: Shard(-1, sizes=[16, 8]) shards the weight as Shard(0, sizes=[16, 8]).
LayerPlacements layer_placements(LayerKind kind, LayerSplit split, const std::optional<Placement>& features = {});

}  // namespace shardwise
