#include "runtime/tensor/symbolic_sizes.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

SymbolHooks hooks;

bool is_any_symbolic(c10::SymIntArrayRef sizes) {
  return std::ranges::any_of(sizes, [](const c10::SymInt& size) { return size.is_symbolic(); });
}

Dims values_of(c10::SymIntArrayRef sizes) {
  if (const auto numbers = c10::asIntArrayRefSlowOpt(sizes)) return Dims(*numbers);
  return hooks.values(sizes);
}

bool is_whole(const Spec& spec, int64_t dim) {
  return std::ranges::all_of(spec.placements(), [&](const Placement& each) {
    return !each.divides() || (each.divided_dim() >= 0 && each.divided_dim() != dim);
  });
}

/// torch's rule for strides over dims without elements. A symbol is 2 or more.
int64_t at_least_1(int64_t size) { return std::max<int64_t>(size, 1); }
c10::SymInt at_least_1(const c10::SymInt& size) {
  return size.is_symbolic() ? size : c10::SymInt(at_least_1(size.expect_int()));
}

/// Strides of `sizes`, with dims in the order in memory that `like` has: dense, except that dims of stride 0 keep it.
template <class Size>
std::vector<Size> ordered_strides(c10::ArrayRef<Size> sizes, c10::IntArrayRef like) {
  std::vector<size_t> inner_first(sizes.size());
  std::iota(inner_first.rbegin(), inner_first.rend(), 0);
  std::ranges::stable_sort(inner_first, {}, [&](size_t dim) { return like[dim]; });
  std::vector<Size> strides(sizes.size(), Size(0));
  Size next(1);
  for (const size_t dim : inner_first) {
    if (like[dim] == 0) continue;
    strides[dim] = next;
    next = next * at_least_1(sizes[dim]);
  }
  return strides;
}

/// True if the strides follow from the sizes and the order of the dims.
bool are_ordered(const Spec& spec) {
  const std::vector<int64_t> strides = ordered_strides(spec.sizes(), spec.strides());
  for (int64_t dim = 0; dim < spec.dim(); ++dim)
    if (spec.sizes()[dim] != 1 && strides[dim] != spec.strides()[dim]) return false;
  return true;
}

/// A stride of the tensor, from that of its only piece, which is the same view of a piece: it counts more elements of the divided dims within.
template <class Size>
Size whole_stride(const Spec& spec, int64_t dim, Size of_piece) {
  int64_t more = 1, fewer = 1;
  for (int64_t inner = 0; inner < spec.dim(); ++inner)
    if (spec.strides()[inner] < spec.strides()[dim] && !is_whole(spec, inner)) {
      more *= spec.sizes()[inner];
      fewer *= at_least_1(spec.boxes()[0].sizes[inner]);
    }
  return of_piece * more / fewer;
}

/// True if whole_stride() gives the strides of `spec`.
bool have_whole_strides(const Spec& spec, const at::Tensor& piece) {
  const Dims strides = strides_of(piece);
  for (int64_t dim = 0; dim < spec.dim(); ++dim)
    if (spec.sizes()[dim] != 1 && whole_stride(spec, dim, strides[dim]) != spec.strides()[dim]) return false;
  return true;
}

}  // namespace

std::unique_ptr<SymbolicSizes> symbolic_sizes_of(const Spec& spec, const Shards& pieces) {
  if (pieces.size() != 1 || !(has_symbols(pieces[0]) || is_any_symbolic(pieces[0].sym_strides()))) return nullptr;
  const c10::SymIntArrayRef local = pieces[0].sym_sizes();
  auto result = std::make_unique<SymbolicSizes>();
  for (int64_t dim = 0; dim < spec.dim(); ++dim) {
    const bool is_free = local[dim].is_symbolic() && is_whole(spec, dim);
    if (local[dim].is_symbolic() && !is_free) fix_symbols(local.slice(dim, 1));
    result->sizes.push_back(is_free ? local[dim] : c10::SymInt(spec.sizes()[dim]));
    result->numel = result->numel * result->sizes.back();
  }
  if (are_ordered(spec)) {
    result->strides = ordered_strides<c10::SymInt>(result->sizes, spec.strides());
  } else if (have_whole_strides(spec, pieces[0])) {
    for (int64_t dim = 0; dim < spec.dim(); ++dim)
      result->strides.push_back(whole_stride(spec, dim, pieces[0].sym_stride(dim)));
  } else {
    fix_symbols(result->sizes);
    for (const int64_t stride : spec.strides()) result->strides.emplace_back(stride);
  }
  return result;
}

bool has_symbols(const at::TensorBase& tensor) { return is_any_symbolic(tensor.sym_sizes()); }
bool has_symbols(const Shards& pieces) {
  return std::ranges::any_of(pieces, [](const at::Tensor& piece) { return has_symbols(piece); });
}

Dims sizes_of(const at::TensorBase& tensor) { return values_of(tensor.sym_sizes()); }
Dims strides_of(const at::TensorBase& tensor) { return values_of(tensor.sym_strides()); }

void fix_symbols(c10::SymIntArrayRef sizes) {
  if (is_any_symbolic(sizes)) hooks.fix(sizes);
}

int64_t fixed_size(const at::TensorBase& tensor, int64_t dim) {
  const c10::SymInt size = tensor.sym_size(dim);
  fix_symbols(size);
  return values_of(size)[0];
}

Shards without_symbols(const Shards& pieces) {
  Shards result;
  for (const at::Tensor& piece : pieces) result.push_back(has_symbols(piece) ? hooks.without_symbols(piece) : piece);
  return result;
}

bool keep_symbols(const Shards& pieces, const Spec& from, const Spec& to) {
  if (pieces.size() != 1 || from.boxes().size() != 1 || to.boxes().size() != 1) return false;
  for (int64_t dim = 0; dim < from.dim(); ++dim)
    if (pieces[0].sym_size(dim).is_symbolic() && !(is_whole(from, dim) && is_whole(to, dim))) return false;
  return true;
}

SpecPtr with_whole_sizes(const SpecPtr& spec, c10::IntArrayRef sizes) {
  if (spec->sizes().equals(sizes) || spec->sizes().size() != sizes.size()) return spec;
  Dims own(spec->sizes());
  for (int64_t dim = 0; dim < spec->dim(); ++dim)
    if (is_whole(*spec, dim)) own[dim] = sizes[dim];
  return Spec::intern(spec->mesh(), own, spec->placements().vec(), ordered_strides<int64_t>(own, spec->strides()),
                      spec->dtype());
}

SpecPtr with_sizes_of(const SpecPtr& spec, const at::Tensor& piece) {
  const SpecPtr own = with_whole_sizes(spec, sizes_of(piece));
  if (are_ordered(*spec)) return own;
  Dims strides = strides_of(piece);
  for (int64_t dim = 0; dim < spec->dim(); ++dim) strides[dim] = whole_stride(*spec, dim, strides[dim]);
  return Spec::intern(own->mesh(), own->layout(), strides, own->dtype());
}

thread_local const KeepsSymbols* KeepsSymbols::current_ = nullptr;

KeepsSymbols::KeepsSymbols(std::string op, size_t argument, std::vector<c10::SymInt> values)
    : argument_{std::move(op), argument, std::move(values)}, before_(std::exchange(current_, this)) {}
KeepsSymbols::~KeepsSymbols() { current_ = before_; }

const SymbolicArgument* KeepsSymbols::argument_of(const std::string& op) {
  return current_ && current_->argument_.op == op ? &current_->argument_ : nullptr;
}

void put_symbols(const SymbolicArgument& argument, const Spec& spec, c10::IValue* args) {
  c10::IValue& first = args[argument.index];
  if (first.isIntList()) {
    first = c10::IValue(c10::SymIntArrayRef(with_symbols(spec, first.toDimVector(), argument.values)));
    return;
  }
  for (size_t i = 0; i < argument.values.size(); ++i)
    if (argument.values[i].is_symbolic()) args[argument.index + i] = argument.values[i];
}

std::vector<c10::SymInt> with_symbols(const Spec& spec, c10::IntArrayRef local, c10::SymIntArrayRef sizes) {
  std::vector<c10::SymInt> result;
  for (size_t dim = 0; dim < local.size(); ++dim) {
    const c10::SymInt& size = sizes[dim];
    const bool is_free = size.is_symbolic() && is_whole(spec, static_cast<int64_t>(dim));
    if (size.is_symbolic() && !is_free) fix_symbols(size);
    result.push_back(is_free ? size : c10::SymInt(local[dim]));
  }
  return result;
}

void set_symbol_hooks(const SymbolHooks& given) { hooks = given; }
const SymbolHooks& symbol_hooks() { return hooks; }

}  // namespace shardwise
