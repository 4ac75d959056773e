#include "runtime/redistribute/execute.h"

#include "placements/partial.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/profiler_span.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/redistribute/buffers.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/mesh_agreement.h"
#include "runtime/redistribute/plan_cache.h"
#include "runtime/redistribute/traced_move.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/traced_pieces.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace shardwise {
namespace {

using Kind = Step::Kind;

bool has_boxes(const OwnStep& own) { return own.step.kind == Kind::kExchange || own.step.kind == Kind::kReduce; }

bool takes_part(const OwnStep& own) { return own.from->is_member() || own.to->is_member(); }

/// The mesh's group; of two meshes that of the one that contains the other; else the world's, and ranks outside both are absent.
Party party_of(const OwnStep& own) {
  if (own.is_local) return {};
  const DeviceMesh &from = *own.from->mesh(), &to = *own.to->mesh();
  if (from.grid() == to.grid() || has_all_ranks_of(from, to)) return {from.group()};
  if (has_all_ranks_of(to, from)) return {to.group()};
  std::vector<int64_t> everyone(from.world()->size());
  std::iota(everyone.begin(), everyone.end(), 0);
  return {from.world()->group(everyone), /*is_whole=*/false};
}

/// For the order check.
std::string words(const Spec& from, const Spec& to, const PlanOptions& options) {
  std::string result = fmt::format("{} -> {}", to_string(from), to_string(to));
  if (from.layout().in_pieces() || to.layout().in_pieces())  // of which the words show a beginning
    result += fmt::format(" #{:x}", c10::get_hash(from.layout().hash(), to.layout().hash()));
  return result + words_of(options);
}

void check(const SpecPtr& source, const SpecPtr& destination) {
  TORCH_INTERNAL_ASSERT(source->sizes() == destination->sizes() && source->dtype() == destination->dtype(),
                        to_string(*source), " cannot become ", to_string(*destination));
  TORCH_CHECK_VALUE(
      source->mesh()->world() == destination->mesh()->world() &&
          source->mesh()->with_memory()->device_type() == destination->mesh()->with_memory()->device_type(),
      fmt::format("[redistribute] the meshes {} and {} belong to different worlds or kinds of device. Make both "
                  "of the current one.",
                  to_string(*source->mesh()), to_string(*destination->mesh())));
  TORCH_CHECK_NOT_IMPLEMENTED(
      !source->mesh()->is_meta() || destination->mesh()->is_meta(),
      fmt::format(
          "[redistribute] Cannot copy out of meta tensor; no data! {} was to get memory. Use torch.empty_like(x, "
          "device=...) or Module.to_empty(), and fill it.",
          to_string(*source)));
  if (source->mesh() != destination->mesh() && !destination->mesh()->is_meta())
    check_same_meshes(*source->mesh(), *destination->mesh());
}

/// To meta there is nothing to move: new pieces without memory.
Shards pieces_on_meta(const Spec& destination) {
  Shards pieces;
  for (const Box& box : destination.boxes()) pieces.push_back(empty_piece(destination, box.sizes, c10::kMeta));
  return pieces;
}

/// One tensor on its way, step by step.
class Moving {
 public:
  Moving(const SpecPtr& source, Shards pieces, const SpecPtr& destination, const PlanOptions& options)
      : plan_(PlanCache::of_thread().find_or_make(source, destination, options)),
        pieces_(std::move(pieces)),
        device_(pieces_.empty() ? source->mesh()->device() : pieces_[0].device()),
        options_(options) {
    const bool sends = plan_->last_sending >= 0 && !destination->mesh()->is_meta();
    if (sends)
      check_comm_policy(
          [&] { return fmt::format("moves {} to {}", to_string(*source), to_string(destination->layout())); });
    for (const OwnStep& own : plan_->steps)
      if (own.step.kind == Kind::kReduce || own.step.kind == Kind::kAllReduce)
        check_reducible(at::empty({0}, at::TensorOptions().dtype(source->dtype()).device(device_)), own.step.reduce);
  }

  const PlanOptions& options() const { return options_; }

  bool is_done() const { return next_ == plan_->steps.size(); }
  const OwnStep& next() const { return plan_->steps[next_]; }
  c10::Device device() const { return device_; }
  const Shards& pieces() const { return pieces_; }

  ExchangeItem item() const { return {&next().step, &next().part, next().from, next().to, pieces_}; }

  /// What an exchange gave.
  void arrive(Shards pieces) {
    pieces_ = std::move(pieces);
    owns_ = true;
    ++next_;
  }

  /// Runs the next step, unless it is one with boxes.
  void run_in_place() {
    for (const auto& reduction : start_in_place()) reduction->finish();
  }

  /// The same, but for the end of an all-reduce.
  std::vector<std::unique_ptr<Reduction>> start_in_place() {
    std::vector<std::unique_ptr<Reduction>> reductions;
    if (next().step.kind == Kind::kAllReduce) {
      for (const at::Tensor& flat : begin_reduction())
        if (auto reduction = start_all_reduce(*reducing_group(), flat, next().step.reduce))
          reductions.push_back(std::move(reduction));
    } else {
      own();
      make_partial(next());
    }
    ++next_;
    return reductions;
  }

  /// The ranks that an all-reduce, the next step, is among.
  const GroupPtr& reducing_group() const { return next().from->mesh()->group(next().step.mesh_dim); }

  /// Before an all-reduce: the elements of each piece in a row, to be reduced in place.
  std::vector<at::Tensor> begin_reduction() {
    own();
    if (const Spec& from = *next().from; from.flat_sizes()) {
      pieces_ = joined(from, std::move(pieces_));
      return {flat_part(from, pieces_).view(-1)};
    }
    std::vector<at::Tensor> flats;
    for (at::Tensor& piece : pieces_) {
      if (piece.strides() != dense_strides(piece.sizes(), next().from->strides()))  // on all ranks alike
        piece = empty_piece(*next().from, piece.sizes(), device_).copy_(piece);
      flats.push_back(piece.as_strided({piece.numel()}, {1}));
    }
    return flats;
  }

  void skip() { ++next_; }

  /// Runs to the end, or to the last step that sends something.
  void run(bool stops_at_last_sending = false) {
    while (!is_done()) {
      const bool is_last = static_cast<int>(next_) == plan_->last_sending;
      if (!takes_part(next())) {
        skip();
      } else if (stops_at_last_sending && is_last) {
        return;
      } else if (!has_boxes(next())) {
        run_in_place();
      } else {
        ExchangeRun exchange = begin();
        exchange.start();
        arrive(std::move(exchange.finish()[0]));
      }
    }
  }

  ExchangeRun begin() const { return ExchangeRun(party_of(next()), {item()}, device_); }

 private:
  /// In-place steps write to memory of this move.
  void own() {
    if (!owns_)
      for (at::Tensor& piece : pieces_) piece = piece.resolve_conj().resolve_neg().clone();
    owns_ = true;
  }

  /// Replicas that become Partial: the first coordinate keeps the value, the others hold the reduction's identity.
  void make_partial(const OwnStep& own) {
    const Reduce reduce = own.step.reduce;
    const bool keeps = reduce != Reduce::kSum && reduce != Reduce::kProduct;
    if (keeps || (*own.from->mesh()->coord())[own.step.mesh_dim] == 0) return;
    for (at::Tensor& piece : pieces_) piece.fill_(identity_of(reduce, own.from->dtype()));
  }

  std::shared_ptr<const OwnPlan> plan_;
  Shards pieces_;
  c10::Device device_;
  PlanOptions options_;
  size_t next_ = 0;
  bool owns_ = false;
};

/// The stream on which a move begins, of an accelerator; none on the CPU. Its memory is that stream's, so that it ends there too.
class HomeStream {
 public:
  explicit HomeStream(c10::Device device) : device_(device) {
    if (!device.is_cpu()) stream_ = current();
  }

  /// To guard what belongs to the move.
  const std::optional<c10::Stream>& stream() const { return stream_; }

  /// The current stream waits for what is on this one.
  void let_current_wait() const {
    if (!stream_ || current() == *stream_) return;
    c10::Event event(device_.type());
    event.record(*stream_);
    event.block(current());
  }

 private:
  c10::Stream current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

class StartedMove final : public PendingMove {
 public:
  explicit StartedMove(Moving moving) : moving_(std::move(moving)), home_(moving_.device()) {
    moving_.run(/*stops_at_last_sending=*/true);
    if (moving_.is_done()) return;
    if (!has_boxes(moving_.next())) {
      reductions_ = moving_.start_in_place();
      return;
    }
    last_.emplace(moving_.begin());
    last_->start(/*may_change=*/true);
  }
  ~StartedMove() override {
    const c10::OptionalStreamGuard at_home(home_.stream());
    last_.reset();
    try {
      finish_reductions();
    } catch (...) {
      reductions_.clear();  // a destructor has nobody to tell
    }
  }

  Shards finish() override {
    {
      const c10::OptionalStreamGuard at_home(home_.stream());
      BelowAutograd guard;
      finish_reductions();
      if (last_) moving_.arrive(std::move(last_->finish()[0]));
      last_.reset();
      moving_.run();
    }
    home_.let_current_wait();
    return moving_.pieces();
  }

 private:
  void finish_reductions() {
    for (const auto& reduction : std::exchange(reductions_, {})) reduction->finish();
  }

  Moving moving_;
  HomeStream home_;
  std::optional<ExchangeRun> last_;
  std::vector<std::unique_ptr<Reduction>> reductions_;
};

int64_t global_bytes(const OwnStep& own) { return own.from->numel() * own.from->element_bytes(); }

/// Takes from the front of `rest` what shares messages with its first: those that are `like` it, up to `bucket_bytes` of global tensors.
template <class Like>
std::vector<Moving*> take_bucket(std::vector<Moving*>& rest, int64_t bucket_bytes, const Like& like) {
  std::vector<Moving*> together, others;
  int64_t n_bytes = 0;
  for (Moving* moving : rest) {
    const bool fits = moving->device() == rest[0]->device() && like(*moving) &&
                      (together.empty() || n_bytes + global_bytes(moving->next()) <= bucket_bytes);
    (fits ? together : others).push_back(moving);
    if (fits) n_bytes += global_bytes(moving->next());
  }
  rest = std::move(others);
  return together;
}

std::string words(const std::vector<Moving*>& movings) {
  std::string result;
  for (const Moving* moving : movings)
    result += words(*moving->next().from, *moving->next().to, moving->options()) + "; ";
  return result;
}

/// Runs the all-reduces that are the next steps of `movings` together, those of one group, dtype and operation.
void reduce_together(std::vector<Moving*> rest, int64_t bucket_bytes) {
  while (!rest.empty()) {
    const OwnStep& first = rest[0]->next();
    const Reduce reduce = first.step.reduce;
    const GroupPtr group = rest[0]->reducing_group();
    const auto together = take_bucket(rest, bucket_bytes, [&](const Moving& moving) {
      return moving.reducing_group() == group && moving.next().step.reduce == reduce &&
             moving.next().from->dtype() == first.from->dtype();
    });
    const auto layouts = [&] { return words(together); };
    const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram, layouts);  // the policy was asked
    std::vector<at::Tensor> flats;
    for (Moving* moving : together)
      for (at::Tensor& flat : moving->begin_reduction()) flats.push_back(std::move(flat));
    if (flats.size() == 1) {
      all_reduce(*group, flats[0], reduce);
    } else {
      const at::Tensor all = at::cat(flats);
      all_reduce(*group, all, reduce);
      int64_t begin = 0;
      for (const at::Tensor& flat : flats) {
        flat.copy_(all.narrow(0, begin, flat.numel()));
        begin += flat.numel();
      }
    }
    for (Moving* moving : together) moving->skip();
  }
}

/// Runs the next exchanges of `movings` together, those of one group and number of rounds, in the order in which they came.
void exchange_together(std::vector<Moving*> rest, int64_t bucket_bytes) {
  while (!rest.empty()) {
    const OwnStep& first = rest[0]->next();
    const Party party = party_of(first);
    const c10::Device device = rest[0]->device();
    const auto together = take_bucket(rest, bucket_bytes, [&](const Moving& moving) {
      const OwnStep& own = moving.next();
      return own.is_local == first.is_local && party_of(own).group == party.group &&
             own.step.n_rounds == first.step.n_rounds;
    });
    std::vector<ExchangeItem> items;
    for (const Moving* moving : together) items.push_back(moving->item());
    const auto layouts = [&] { return words(together); };
    const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram, layouts);  // the policy was asked
    ExchangeRun exchange(party, std::move(items), device);
    exchange.start();
    auto results = exchange.finish();
    for (size_t i = 0; i < together.size(); ++i) together[i]->arrive(std::move(results[i]));
  }
}

}  // namespace

c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype) {
  if (reduce == Reduce::kProduct) return 1;
  if (is_linear(reduce)) return 0;
  const bool is_max = reduce == Reduce::kMax;
  if (c10::isFloatingType(dtype))
    return is_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (dtype == c10::ScalarType::Bool) return !is_max;
  return AT_DISPATCH_V2(
      dtype, "identity_of", AT_WRAP([&] {
        return c10::Scalar(is_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max());
      }),
      AT_EXPAND(AT_INTEGRAL_TYPES));
}

Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination, const PlanOptions& options) {
  if (source == destination) return shards;
  check(source, destination);
  BelowAutograd guard;
  if (is_traced(shards) && !destination->mesh()->is_meta()) [[unlikely]]
    return traced_move({source, destination, options}, shards);
  const auto layouts = [&] { return words(*source, *destination, options); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  const ProfilerSpan span([&] { return fmt::format("shardwise::move {}", layouts()); });
  Moving moving(source, shards, destination, options);
  if (destination->mesh()->is_meta()) return pieces_on_meta(*destination);
  moving.run();
  return moving.pieces();
}

std::unique_ptr<PendingMove> start_move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination,
                                        const PlanOptions& options) {
  check(source, destination);
  BelowAutograd guard;
  if (is_traced(shards)) [[unlikely]]
    return start_traced_move({source, destination, options}, shards);
  const auto layouts = [&] { return words(*source, *destination, options); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  return std::make_unique<StartedMove>(Moving(source, shards, destination, options));
}

namespace {

/// move_many() where some tensors are traced: a message of its own for each.
std::vector<Shards> moved_one_by_one(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                                     c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options) {
  std::vector<Shards> results;
  for (size_t i = 0; i < sources.size(); ++i) results.push_back(move(sources[i], shards[i], destinations[i], options));
  return results;
}

/// move_many() where some tensors are on meta.
std::vector<Shards> moved_apart(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                                c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options, int64_t bucket_bytes) {
  std::vector<Shards> results(sources.size()), rest;
  std::vector<SpecPtr> from, to;
  std::vector<size_t> places;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (destinations[i]->mesh()->is_meta()) {
      results[i] = move(sources[i], shards[i], destinations[i], options);
      continue;
    }
    from.push_back(sources[i]);
    rest.push_back(shards[i]);
    to.push_back(destinations[i]);
    places.push_back(i);
  }
  auto moved = move_many(from, rest, to, options, bucket_bytes);
  for (size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(moved[i]);
  return results;
}

}  // namespace

std::vector<Shards> move_many(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                              c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options, int64_t bucket_bytes) {
  for (size_t i = 0; i < sources.size(); ++i) check(sources[i], destinations[i]);
  BelowAutograd guard;
  const auto is_on_meta = [](const SpecPtr& spec) { return spec->mesh()->is_meta(); };
  if (std::ranges::any_of(shards, is_traced)) [[unlikely]]
    return moved_one_by_one(sources, shards, destinations, options);
  if (std::ranges::any_of(destinations, is_on_meta))
    return moved_apart(sources, shards, destinations, options, bucket_bytes);
  std::vector<Moving> movings;
  for (size_t i = 0; i < sources.size(); ++i) movings.emplace_back(sources[i], shards[i], destinations[i], options);
  while (true) {
    std::vector<Moving*> reducing, exchanging;
    for (Moving& moving : movings) {
      while (!moving.is_done() && !takes_part(moving.next())) moving.skip();
      while (!moving.is_done() && moving.next().step.kind == Kind::kMakePartial) moving.run_in_place();
      if (!moving.is_done()) (has_boxes(moving.next()) ? exchanging : reducing).push_back(&moving);
    }
    if (reducing.empty() && exchanging.empty()) break;
    reduce_together(std::move(reducing), bucket_bytes);
    exchange_together(std::move(exchanging), bucket_bytes);
  }
  std::vector<Shards> results;
  for (const Moving& moving : movings) results.push_back(moving.pieces());
  return results;
}

MoveCounters move_counters() {
  const PlanCache& plans = PlanCache::of_thread();
  const BufferCounters& buffers = BufferPool::of_thread().counters();
  return {plans.hits(), plans.misses(), plans.size(), buffers.hits, buffers.misses, buffers.kept_bytes};
}

}  // namespace shardwise
