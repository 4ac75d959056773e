// runtime/tensor/symbolic_sizes.h: sizes of traced tensors that are symbols of the tracer: one graph serves all their values.
//
// Layouts consist of numbers, so the layout of such a tensor has the sizes of the call that is being traced. Only dims that are whole on each rank have
// symbols. Operators that use no number of such a dim run on the pieces, whose sizes are the symbols: python/shardwise/_symbols.py lists them. Whatever
// else reads a size fixes all symbols of the tensor: the graph gets a guard, and a call with another size makes another graph.
#pragma once

#include "runtime/tensor/spec.h"

#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// The global sizes of a tensor, its strides and its number of elements.
struct SymbolicSizes {
  std::vector<c10::SymInt> sizes, strides;
  c10::SymInt numel = 1;
};

/// The sizes and strides of a tensor of `spec` with these pieces; null if they are numbers. Fixes symbols of divided dims.
std::unique_ptr<SymbolicSizes> symbolic_sizes_of(const Spec& spec, const Shards& pieces);

/// True if a size of `tensor` is a symbol.
bool has_symbols(const at::TensorBase& tensor);
bool has_symbols(const Shards& pieces);
/// The sizes of a plain tensor. Symbols have their values in the call that is being traced, and are not fixed.
Dims sizes_of(const at::TensorBase& tensor);
/// The strides of a plain tensor (elements), with the values of symbols.
Dims strides_of(const at::TensorBase& tensor);

/// True if a piece has these sizes, in the call that is being traced if they are symbols.
inline bool has_sizes(const at::TensorBase& piece, c10::IntArrayRef sizes) {
  return piece.key_set().has(c10::DispatchKey::Python) ? sizes_of(piece) == Dims(sizes) : piece.sizes() == sizes;
}

/// Fixes symbols: the graph is valid for their values in the call that is being traced.
void fix_symbols(c10::SymIntArrayRef sizes);
/// One size of a tensor. Fixes its symbol alone, where `tensor.size(dim)` would fix those of all dims.
int64_t fixed_size(const at::TensorBase& tensor, int64_t dim);
/// The pieces with numbers for their sizes. Fixes their symbols.
Shards without_symbols(const Shards& pieces);
/// True if each dim in which `pieces` have symbols is whole on each rank under both layouts, and strides follow from sizes.
bool keep_symbols(const Shards& pieces, const Spec& from, const Spec& to);
/// The layout of a tensor that has other `sizes`, global or of a piece, in dims that are whole on each rank. `spec` if there are none, or not as many dims.
SpecPtr with_whole_sizes(const SpecPtr& spec, c10::IntArrayRef sizes);

/// The layout of a tensor whose piece is `piece`, of `spec` but for the sizes of dims that are whole on each rank, and the strides that follow.
SpecPtr with_sizes_of(const SpecPtr& spec, const at::Tensor& piece);

/// Arguments of an operator: a list of sizes of the result, such as that of view(), or numbers, such as the begin and end of a slice.
struct SymbolicArgument {
  std::string op;  // "" if there is none
  size_t index = 0;
  std::vector<c10::SymInt> values;  // the sizes; or the numbers, which are consecutive arguments from `index` on
};

/// During its lifetime this thread may read sizes as numbers, and fixes none. For operators whose results do not depend on them.
class KeepsSymbols {
 public:
  KeepsSymbols(std::string op, size_t argument, std::vector<c10::SymInt> values);
  ~KeepsSymbols();
  C10_DISABLE_COPY_AND_ASSIGN(KeepsSymbols);
  static bool is_active() { return current_; }
  /// The symbolic argument of the call of `op`; null if it has none.
  static const SymbolicArgument* argument_of(const std::string& op);

 private:
  SymbolicArgument argument_;
  const KeepsSymbols* before_;
  static thread_local const KeepsSymbols* current_;
};

/// Puts symbols into `args`, the arguments for a piece of a result of `spec`, with numbers. Sizes are symbols in dims that are whole on each rank.
void put_symbols(const SymbolicArgument& argument, const Spec& spec, c10::IValue* args);
/// The sizes of a piece of `spec` whose numbers are `local`, with the symbols among `sizes`, the global ones, of dims that are whole on each rank. Fixes
/// the others.
std::vector<c10::SymInt> with_symbols(const Spec& spec, c10::IntArrayRef local, c10::SymIntArrayRef sizes);

/// Functions of the tracer, which is in Python.
struct SymbolHooks {
  Dims (*values)(c10::SymIntArrayRef sizes);  // in the call that is being traced
  void (*fix)(c10::SymIntArrayRef sizes);     // fix_symbols()
  at::Tensor (*without_symbols)(const at::Tensor& piece);
  /// The `sizes`, of which symbols are those in `symbols`, where these have `values`.
  Dims (*evaluate)(c10::SymIntArrayRef sizes, c10::SymIntArrayRef symbols, c10::IntArrayRef values);
};
void set_symbol_hooks(const SymbolHooks& hooks);
const SymbolHooks& symbol_hooks();

}  // namespace shardwise
