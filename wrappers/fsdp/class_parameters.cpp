#include "wrappers/fsdp/class_parameters.h"

#include "runtime/comm/agreement.h"
#include "runtime/tensor/subclass.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

namespace shardwise {
namespace {

const at::Tensor& object_in(const at::Tensor& tensor) {
  const auto* const impl = maybe_dtensor(tensor);
  return impl ? impl->local_tensors()[0] : tensor;
}

template <class Tensors>
std::string list_of(const Tensors& tensors) {
  std::vector<std::string> result;
  for (const auto& each : tensors)
    result.push_back(fmt::format("{} [{}]", c10::toString(each.dtype), fmt::join(each.sizes, ", ")));
  return result.empty() ? "no tensor" : fmt::format("{}", fmt::join(result, ", "));
}

/// `piece` as it is sent: without the rows by which a class padded it to the longest part, as torch's fully_shard requires.
at::Tensor unpadded(const at::Tensor& piece, const ShardedParameter& placed, int64_t index) {
  const Split& split = placed.split();
  if (!split.is_sharded) return piece;
  Dims padded(placed.sizes());
  padded[split.dim] = std::ranges::max(split.ranges, {}, &ShardRange::size).size;
  return piece.sizes() == c10::IntArrayRef(padded) ? piece.narrow(split.dim, 0, split.ranges[index].size) : piece;
}

}  // namespace

ClassParameters::ClassParameters(const std::vector<std::string>& names, const std::vector<ShardedParameter>& parameters,
                                 const std::vector<at::Tensor>& sharded)
    : names_(names), all_(parameters), sharded_(sharded) {
  for (size_t i = 0; i < sharded.size(); ++i)
    if (maybe_dtensor(sharded[i])->holds_subclass()) parameters_.push_back({i, {}, 0, false, {}});
}

bool ClassParameters::contains(size_t parameter) const {
  return std::ranges::any_of(parameters_, [&](const Parameter& each) { return each.index == parameter; });
}

std::string ClassParameters::sent_as(size_t parameter) const {
  std::vector<std::string> dtypes;
  for (const Parameter& each : parameters_)
    if (each.index == parameter)
      for (const Tensor& tensor : each.tensors) dtypes.emplace_back(c10::toString(tensor.dtype));
  return fmt::format("{}", fmt::join(dtypes, " and "));
}

std::string ClassParameters::whose(const Parameter& parameter) const {
  return fmt::format("[fully_shard] {}, a {}:", names_[parameter.index],
                     class_of(object_in(sharded_[parameter.index])));
}

std::vector<at::Tensor> ClassParameters::pieces_of(const Parameter& parameter, c10::Device device,
                                                   int64_t index) const {
  const ShardedParameter& placed = all_[parameter.index];
  auto [tensors, fault] = calls_.pieces(parameter.index, placed.sizes().vec());
  SW_CHECK_TYPE(
      fault.empty(),
      "{} fsdp_pre_all_gather returns {}. Return a tuple of plain tensors, and metadata for fsdp_post_all_gather.",
      whose(parameter), fault);
  for (at::Tensor& each : tensors) {
    const bool is_plain = !is_dtensor(each) && !is_subclass(each) && each.layout() == c10::kStrided;
    SW_CHECK_TYPE(
        is_plain,
        "{} fsdp_pre_all_gather returns a tensor of {}, whose memory cannot be sent. Give the plain tensors in it.",
        whose(parameter),
        is_dtensor(each)    ? "class DTensor"
        : is_subclass(each) ? "class " + class_of(each)
                            : "layout " + c10::str(each.layout()));
    SW_CHECK_VALUE(each.device() == device,
                   "{} fsdp_pre_all_gather returns a tensor on {}, but the parameter is on {}. Return tensors on the "
                   "device of the parameter.",
                   whose(parameter), c10::str(each.device()), c10::str(device));
    each = unpadded(each.dim() == 0 ? each.detach().reshape({1}) : each.detach(), placed, index).contiguous();
  }
  return std::move(tensors);
}

void ClassParameters::check_as_before(const Parameter& parameter, const std::vector<at::Tensor>& pieces) const {
  std::vector<Tensor> now;
  for (const at::Tensor& each : pieces) now.push_back({each.scalar_type(), Dims(each.sizes())});
  const auto are_alike = [](const Tensor& a, const Tensor& b) { return a.dtype == b.dtype && a.sizes == b.sizes; };
  SW_CHECK_VALUE(std::ranges::equal(now, parameter.tensors, are_alike),
                 "{} fsdp_pre_all_gather returns {} now, but returned {} before the first gather, when the ranks "
                 "agreed on it. Return tensors of the same number, dtypes and sizes each time.",
                 whose(parameter), list_of(now), list_of(parameter.tensors));
}

void ClassParameters::take_pieces(const Group& ranks, GatheredMemory& memory, std::vector<at::Tensor>& own) {
  if (empty()) return;
  std::vector<std::vector<at::Tensor>> pieces;
  if (are_known_) {
    for (const Parameter& each : parameters_) {
      pieces.push_back(pieces_of(each, memory.device(), ranks.index));
      check_as_before(each, pieces.back());
    }
  } else {
    agree_on(ranks, memory, pieces);
  }
  own.resize(memory.size());
  for (size_t k = 0; k < parameters_.size(); ++k)
    std::ranges::move(pieces[k], own.begin() + static_cast<int64_t>(parameters_[k].first));
}

void ClassParameters::agree_on(const Group& ranks, GatheredMemory& memory,
                               std::vector<std::vector<at::Tensor>>& pieces) {
  Facts own("tensors of parameters");
  RankError error;
  std::exception_ptr failure;
  const Parameter* asked = nullptr;
  try {
    for (const Parameter& each : parameters_) {
      asked = &each;
      pieces.push_back(pieces_of(each, memory.device(), ranks.index));
      own.number(static_cast<int64_t>(pieces.back().size()));
      for (const at::Tensor& piece : pieces.back())
        own.number(static_cast<int64_t>(piece.scalar_type())).list(piece.sizes());
    }
  } catch (const std::exception& thrown) {
    error = RankError::current();
    error.text = taken_error(thrown);
    if (!error.is_mistake()) error.text = fmt::format("{} fsdp_pre_all_gather failed: {}", whose(*asked), error.text);
    failure = std::current_exception();
  }
  std::vector<Facts> facts;
  try {
    facts = agree(ranks, "fully_shard", own, error);
  } catch (const std::exception&) {
    if (failure) std::rethrow_exception(failure);  // the exception of the class, with its own type
    throw;
  }
  std::vector<FactReader> readers(facts.begin(), facts.end());
  std::vector<std::vector<Tensor>> known;
  std::vector<GatheredLayout> layouts;
  for (const Parameter& parameter : parameters_) {
    std::vector<std::vector<Tensor>> of_ranks(facts.size());  // by member
    for (size_t member = 0; member < facts.size(); ++member)
      for (int64_t n = readers[member].number(); n > 0; --n) {
        const auto dtype = static_cast<c10::ScalarType>(readers[member].number());
        of_ranks[member].push_back({dtype, readers[member].list()});
      }
    const auto& first = of_ranks[0];
    const auto n_dims = static_cast<int64_t>(all_[parameter.index].sizes().size());
    const auto dim_of = [&](const Tensor& tensor) {
      return static_cast<int64_t>(tensor.sizes.size()) == n_dims ? all_[parameter.index].split().dim : 0;
    };
    for (size_t member = 1; member < of_ranks.size(); ++member) {
      const auto fit = [&](const Tensor& a, const Tensor& b) {
        if (a.dtype != b.dtype || a.sizes.size() != b.sizes.size()) return false;
        Dims like = a.sizes;
        like[dim_of(a)] = b.sizes[dim_of(a)];
        return like == b.sizes;
      };
      SW_CHECK_VALUE(
          std::ranges::equal(first, of_ranks[member], fit),
          "{} fsdp_pre_all_gather returns {} on rank {}, and {} on rank {}. Return the same number of tensors on all "
          "ranks, with the same dtypes, and with the same sizes except along the sharded dim.",
          whose(parameter), list_of(first), ranks.ranks[0], list_of(of_ranks[member]), ranks.ranks[member]);
    }
    for (size_t k = 0; k < first.size(); ++k) {
      Split split{true, dim_of(first[k]), {}};
      int64_t size = 0;
      for (const auto& tensors : of_ranks) {
        split.ranges.push_back({size, tensors[k].sizes[split.dim]});
        size += split.ranges.back().size;
      }
      Dims sizes = first[k].sizes;
      sizes[split.dim] = size;
      layouts.push_back({std::move(split), sizes, row_major_strides(sizes), first[k].dtype});
    }
    known.push_back(of_ranks[ranks.index]);
  }
  size_t next = memory.size();
  for (size_t k = 0; k < parameters_.size(); ++k) {
    parameters_[k].first = std::exchange(next, next + known[k].size());
    parameters_[k].tensors = std::move(known[k]);
  }
  memory.add(std::move(layouts));
  are_known_ = true;
}

bool ClassParameters::make_wholes(const GatheredMemory& memory, std::vector<at::Tensor>& leaves) {
  if (!std::exchange(have_memory_, true))
    for (const Parameter& each : parameters_)
      for (const c10::Storage& storage : each.storages) allocate_storage(*storage.unsafeGetStorageImpl());
  bool is_new = false;
  for (Parameter& parameter : parameters_) {
    const ShardedParameter& placed = all_[parameter.index];
    at::Tensor& leaf = leaves[parameter.index];
    std::vector<at::Tensor> gathered;
    for (size_t k = 0; k < parameter.tensors.size(); ++k) gathered.push_back(memory.tensor(parameter.first + k));
    const auto made = calls_.whole(parameter.index, gathered, parameter.is_made ? object_in(leaf) : at::Tensor());
    if (parameter.is_made) continue;
    TORCH_INTERNAL_ASSERT(made, "[fully_shard] a class's whole parameter is missing");
    SW_CHECK_VALUE(made->whole.sizes() == placed.sizes(),
                   "{} fsdp_post_all_gather returns a tensor of shape [{}] for a parameter of shape [{}]. Return a "
                   "tensor of the parameter's shape.",
                   whose(parameter), fmt::join(made->whole.sizes(), ", "), fmt::join(placed.sizes(), ", "));
    for (const at::Tensor& inner : made->inner)
      if (inner.has_storage() && !is_subclass(inner) &&
          inner.storage().unsafeGetStorageImpl() != memory.storage().unsafeGetStorageImpl())
        parameter.storages.push_back(inner.storage());
    leaf = made->whole;
    if (const SpecPtr spec = placed.whole_spec(leaf.scalar_type()))
      leaf = wrap(spec->on(memory.device().type()), {leaf});
    leaf.requires_grad_(sharded_[parameter.index].requires_grad());
    parameter.is_made = true;
    is_new = true;
  }
  return is_new;
}

void ClassParameters::release() {
  if (!have_memory_) return;
  for (const Parameter& each : parameters_)
    for (const c10::Storage& storage : each.storages) have_memory_ = !release_storage(*storage.unsafeGetStorageImpl());
}

}  // namespace shardwise
