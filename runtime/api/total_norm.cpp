#include "runtime/api/total_norm.h"

#include "placements/placement_list.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/digest.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace shardwise {
namespace {

/// The elements on the meshes of one set of ranks.
struct Part {
  MeshPtr mesh;
  std::vector<at::Tensor> pieces;  // this rank's; each element of a tensor is on one rank only
};

/// True on the first of the ranks that hold the same elements: it counts them.
bool counts(const Spec& spec) { return spec.is_member() && spec.layout().is_first_replica(*spec.mesh()->coord()); }

/// Adds up powers |x|^p, or compares |x| if p is infinite.
class PowerSum {
 public:
  explicit PowerSum(double p) : p_(p) {}

  Reduce reduce() const { return std::isinf(p_) ? (p_ > 0 ? Reduce::kMax : Reduce::kMin) : Reduce::kSum; }
  /// The value for no elements.
  double empty() const { return std::isinf(p_) && p_ < 0 ? std::numeric_limits<double>::infinity() : 0; }

  /// 0-dim, on `device`, in double precision.
  at::Tensor of_elements(const std::vector<at::Tensor>& pieces, c10::Device device) const {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& piece : pieces)
      if (piece.numel() > 0)
        norms.push_back(
            at::linalg_vector_norm(piece, p_, std::nullopt, false, precise(piece.scalar_type())).to(device));
    if (norms.empty()) return at::full({}, empty(), at::TensorOptions().dtype(at::kDouble).device(device));
    return of_powers(power(at::stack(norms).to(at::kDouble)));
  }
  /// Combines all elements of `powers`.
  at::Tensor of_powers(const at::Tensor& powers) const {
    if (reduce() == Reduce::kMax) return powers.max();
    return reduce() == Reduce::kMin ? powers.min() : powers.sum();
  }
  at::Tensor root(const at::Tensor& sum) const { return is_identity() ? sum : sum.pow(1 / p_); }

 private:
  bool is_identity() const { return std::isinf(p_) || p_ == 1; }
  at::Tensor power(const at::Tensor& norms) const { return is_identity() ? norms : norms.pow(p_); }

  static std::optional<at::ScalarType> precise(at::ScalarType dtype) {
    return dtype == at::kHalf || dtype == at::kBFloat16 ? std::optional(at::kFloat) : std::nullopt;
  }

  double p_;
};

/// A digest of this rank's tensors, for all ranks to compare.
class GivenTensors {
 public:
  explicit GivenTensors(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    Digest digest;
    std::map<const Spec*, std::string> known;  // many tensors have one spec, which says all
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::string& text = known[is_dtensor(tensors_[i]) ? spec_of(tensors_[i]).get() : nullptr];
      if (text.empty() || !is_dtensor(tensors_[i])) text = words(i);
      digest.add(text);
    }
    constexpr int64_t kExact = (int64_t{1} << 52) - 1;  // integers that a double holds exactly
    digest_ = static_cast<double>(digest.value() & kExact);
  }

  double digest() const { return digest_; }

  /// Throws: on all ranks alike, if the ranks' digests (by group order) are not all equal. Collective in that case.
  void check(const Group& group, const std::vector<double>& digests) const {
    const auto other = std::ranges::find_if(digests, [&](double each) { return each != digests[0]; });
    if (other == digests.end()) return;
    Facts own("gradients");
    for (size_t i = 0; i < tensors_.size(); ++i) own.text(words(i));
    const auto all = agree(group, "total_norm", own);
    const auto place = static_cast<size_t>(other - digests.begin());
    const auto first = texts_in(all[0]), second = texts_in(all[place]);
    const size_t n = std::ranges::mismatch(first, second).in1 - first.begin();
    const auto shown = [n](const std::vector<std::string>& texts) { return n < texts.size() ? texts[n] : "none"; };
    SW_CHECK_VALUE(false,
                   "[total_norm] rank {} gives {} gradients and rank {} gives {}. The first difference is gradient {}: "
                   "{} on rank {} and {} on rank {}. A parameter must have a gradient on all ranks or on none. Look "
                   "for a parameter that the loss of one rank does not use.",
                   group.ranks[0], first.size(), group.ranks[place], second.size(), n, shown(first), group.ranks[0],
                   shown(second), group.ranks[place]);
  }

 private:
  std::string words(size_t i) const {
    const at::Tensor& tensor = tensors_[i];
    // Without the mesh, because each rank has its own slice of a mesh.
    return fmt::format("{} [{}]{}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                       is_dtensor(tensor) ? " as " + to_string(spec_of(tensor)->placements()) : "");
  }
  static std::vector<std::string> texts_in(const Facts& facts) {
    std::vector<std::string> texts;
    for (FactReader reader(facts); !reader.at_end();) texts.push_back(reader.text());
    return texts;
  }

  const std::vector<at::Tensor>& tensors_;
  double digest_ = 0;
};

/// One all-reduce sends a row per rank: its term of each part, and the digest of its tensors. Each rank then adds up the rows of a part's
/// ranks. The rows are kept apart because ranks may know a part on different meshes, such as slices of one mesh.
std::vector<at::Tensor> reduced_together(const DeviceMesh& mesh, const std::vector<Part>& parts,
                                         const std::vector<at::Tensor>& own, const PowerSum& sum,
                                         const GivenTensors& given) {
  const Group& group = *mesh.group();
  const auto n_columns = static_cast<int64_t>(parts.size()) + 1;
  const at::Tensor table = at::zeros({group.size(), n_columns}, own[0].options());
  table[group.index].narrow(0, 0, n_columns - 1).copy_(at::stack(own));
  table[group.index][n_columns - 1].fill_(given.digest());
  all_reduce(group, table, Reduce::kSum);
  if (!table.is_meta()) {
    const at::Tensor digests = table.select(1, n_columns - 1).cpu().contiguous();
    const auto* const begin = digests.const_data_ptr<double>();
    given.check(group, {begin, begin + group.size()});
  }
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<int64_t> rows;
    for (const int64_t rank : parts[i].mesh->grid().ranks) rows.push_back(group.index_of(rank));
    const at::Tensor term_of_rank = table.select(1, static_cast<int64_t>(i));
    sums.push_back(sum.of_powers(term_of_rank.index_select(0, at::tensor(rows, at::kLong).to(table.device()))));
  }
  return sums;
}

/// A tensor with one element: the norm of all elements of the sparse tensor.
at::Tensor norm_of_sparse(const at::Tensor& tensor, double norm_type) {
  const at::Tensor norm = at::linalg_vector_norm(tensor, norm_type);
  return is_dtensor(norm) ? redistribute(norm, Placements(spec_of(norm)->mesh()->ndim())) : norm;
}

/// The first mesh that has the ranks of all others, or null.
MeshPtr covering(const std::vector<Part>& parts) {
  for (const Part& part : parts)
    if (std::ranges::all_of(parts, [&](const Part& other) { return has_all_ranks_of(*part.mesh, *other.mesh); }))
      return part.mesh;
  return nullptr;
}

/// The sum of each part whose mesh this rank belongs to.
std::vector<at::Tensor> reduced(const std::vector<Part>& parts, const PowerSum& sum, const GivenTensors& given) {
  std::vector<at::Tensor> own;
  for (const Part& part : parts) own.push_back(sum.of_elements(part.pieces, part.mesh->device()));
  const MeshPtr all = covering(parts);
  if (all) return all->is_member() ? reduced_together(*all, parts, own, sum, given) : std::vector<at::Tensor>();
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < parts.size(); ++i)
    if (const DeviceMesh& mesh = *parts[i].mesh; mesh.is_member()) {
      all_reduce(*mesh.group(), own[i], sum.reduce());
      sums.push_back(own[i]);
    }
  // Checked only after the messages: other members wait for this rank's terms.
  const auto outside = std::ranges::find_if(parts, [](const Part& part) { return !part.mesh->is_member(); });
  SW_CHECK_VALUE(outside == parts.end(),
                 "[total_norm] tensors are on {} meshes, and no mesh has the ranks of all others. Rank {} is outside "
                 "{}, so it does not know the total norm. Clip the tensors of each mesh separately.",
                 parts.size(), outside->mesh->rank(), to_string(*outside->mesh));
  return sums;
}

std::vector<at::Tensor> without_partials(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result = tensors, partials;
  std::vector<Placements> placements;
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (const auto* impl = maybe_dtensor(tensors[i]); impl && impl->spec()->layout().has_terms()) {
      places.push_back(i);
      partials.push_back(tensors[i]);
      placements.push_back(without_partial(impl->spec()->placements()));
    }
  const auto reduced = redistribute_many(partials, placements);
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = reduced[i];
  return result;
}

}  // namespace

at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  const at::NoGradGuard no_grad;
  const CommScope scope("total_norm", CommScope::Cause::kProgram);
  TORCH_INTERNAL_ASSERT(norm_type != 0, "the norm of order 0 counts tensors");
  at::ScalarType dtype = tensors.at(0).scalar_type();
  for (const at::Tensor& tensor : tensors) dtype = c10::promoteTypes(dtype, tensor.scalar_type());
  dtype = c10::toRealValueType(dtype);

  std::vector<Part> parts;
  std::vector<at::Tensor> plain;
  for (const at::Tensor& given : without_partials(tensors)) {
    const at::Tensor tensor = given.is_sparse() ? norm_of_sparse(given, norm_type) : given;
    const auto* impl = maybe_dtensor(tensor);
    if (!impl) {
      plain.push_back(tensor);
      continue;
    }
    const MeshPtr& mesh = impl->spec()->mesh();
    auto part = std::ranges::find_if(parts, [&](const Part& known) { return have_same_ranks(*known.mesh, *mesh); });
    if (part == parts.end()) part = parts.insert(parts.end(), Part{mesh, {}});
    if (counts(*impl->spec())) part->pieces.insert(part->pieces.end(), impl->shards().begin(), impl->shards().end());
  }

  const BelowAutograd guard;
  const PowerSum sum(norm_type);
  const at::Tensor own = sum.of_elements(plain, plain.empty() ? c10::Device(at::kCPU) : plain[0].device());
  if (parts.empty()) return sum.root(own).to(dtype);
  const auto largest = std::ranges::max_element(parts, {}, [](const Part& part) { return part.mesh->size(); });
  const MeshPtr mesh = largest->mesh;
  std::vector<at::Tensor> sums{own.to(mesh->device())};
  for (const at::Tensor& part : reduced(parts, sum, GivenTensors(tensors))) sums.push_back(part.to(mesh->device()));
  Shards result;
  if (mesh->is_member()) result = {sum.root(sum.of_powers(at::stack(sums))).to(dtype)};
  return wrap(Spec::intern(mesh, {}, Placements(mesh->ndim()), {}, dtype), std::move(result));
}

}  // namespace shardwise
