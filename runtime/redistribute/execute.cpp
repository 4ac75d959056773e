#include "runtime/redistribute/execute.h"

#include "placements/placement_list.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/profiler_span.h"
#include "runtime/redistribute/buffers.h"
#include "runtime/redistribute/moving.h"
#include "runtime/redistribute/plan_cache.h"
#include "runtime/redistribute/subclass_move.h"
#include "runtime/redistribute/traced_step.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/owned_rows.h"
#include "runtime/tensor/traced_pieces.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

namespace shardwise {
namespace {

/// Whether a traced move becomes operators of steps. A move without messages does not: the tracer sees its narrow, fill and copy.
bool is_opaque(const SpecPtr& source, const SpecPtr& destination, const PlanOptions& options) {
  return !have_same_ranks(*source->mesh(), *destination->mesh()) ||
         PlanCache::of_thread().find_or_make(source, destination, options)->last_sending >= 0;
}

/// A subclass moves as inner tensors whose sizes the ranks tell each other at run time, so no graph can contain the move.
void check_no_traced_subclass(const Shards& pieces) {
  if (!pieces.empty() && is_traced(pieces) && is_traced_subclass(pieces[0])) [[unlikely]]
    check_not_traced("redistribute of a tensor class");
}

/// This rank's pieces of a tensor on meta.
Shards pieces_on_meta(const Spec& spec) {
  Shards pieces;
  for (const Box& box : spec.boxes()) pieces.push_back(empty_piece(spec, box.sizes, c10::kMeta));
  return pieces;
}

/// Runs to the end. Pieces that reach another mesh unchanged are copied: views do not span two meshes, so shared memory would go unnoticed.
void run_to_end(Moving& moving, bool is_to_other_mesh) {
  moving.run();
  if (is_to_other_mesh) moving.own();
}

/// The accelerator stream on which a move begins (none on the CPU). The move's memory belongs to that stream, so the move must end there.
class HomeStream {
 public:
  explicit HomeStream(c10::Device device) : device_(device) {
    if (!device.is_cpu() && !device.is_meta()) stream_ = current();
  }

  /// The stream to make current while the move's memory is used.
  const std::optional<c10::Stream>& stream() const { return stream_; }

  /// Makes the current stream wait for the work on this one.
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
  /// `may_change`: the source may be written to before finish().
  StartedMove(Moving moving, bool is_to_other_mesh, bool may_change)
      : moving_(std::move(moving)), is_to_other_mesh_(is_to_other_mesh), home_(moving_.device()) {
    moving_.run(/*stops_at_last_sending=*/true);
    if (moving_.is_done()) {
      run_to_end(moving_, is_to_other_mesh_);  // not later: the source may be written to before finish()
      return;
    }
    if (!moving_.next().step.has_boxes()) {
      reductions_ = moving_.start_reduction(may_change ? WaitsFor::kNothing : WaitsFor::kShort);
      return;
    }
    last_.emplace(moving_.begin());
    last_->start(may_change);
  }
  /// Waits, as Messages do. Does not wait while an exception unwinds, because other ranks may be waiting for this one.
  ~StartedMove() override {
    const c10::OptionalStreamGuard at_home(home_.stream());
    last_.reset();
    if (std::uncaught_exceptions() > 0) {
      reductions_.clear();
      return;
    }
    try {
      finish_reductions();
    } catch (...) {
      reductions_.clear();  // a destructor cannot report the error
    }
  }

  Shards finish() override {
    {
      const c10::OptionalStreamGuard at_home(home_.stream());
      BelowAutograd guard;
      finish_reductions();
      if (last_) moving_.arrive(std::move(last_->finish()[0]));
      last_.reset();
      run_to_end(moving_, is_to_other_mesh_);
    }
    home_.let_current_wait();
    return moving_.pieces();
  }

 private:
  void finish_reductions() {
    for (const auto& reduction : std::exchange(reductions_, {})) reduction->finish();
  }

  Moving moving_;
  bool is_to_other_mesh_;
  HomeStream home_;
  std::optional<ExchangeRun> last_;
  std::vector<std::unique_ptr<Reduction>> reductions_;
};

std::unique_ptr<PendingMove> started_move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination,
                                          const PlanOptions& options, bool may_change) {
  check_move(source, destination);
  BelowAutograd guard;
  const auto layouts = [&] { return move_words(*source, *destination, options); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  return std::make_unique<StartedMove>(Moving(source, shards, destination, options),
                                       source->mesh() != destination->mesh(), may_change);
}

/// True if this rank's piece has its piece of the destination, and symbols in dims alone that neither layout divides.
bool may_slice(const Shards& pieces, const Spec& source, const Spec& destination) {
  return keep_symbols(pieces, source, destination) && source.mesh() == destination.mesh() &&
         !source.layout().has_terms() && !destination.layout().has_terms() &&
         source.boxes()[0].contains(destination.boxes()[0]);
}

/// The part of a piece that is in the destination's, in memory of its own. Uses the sizes of divided dims alone.
at::Tensor sliced(const at::Tensor& piece, const Box& held, const Spec& destination) {
  const Box& wanted = destination.boxes()[0];
  at::Tensor part = piece;
  for (int64_t dim = 0; dim < destination.dim(); ++dim)
    if (wanted.sizes[dim] != held.sizes[dim])
      part = part.narrow(dim, wanted.offsets[dim] - held.offsets[dim], wanted.sizes[dim]);
  return part.clone(at::MemoryFormat::Preserve);
}

TracedStep traced_move(const SpecPtr& source, const SpecPtr& destination, const PlanOptions& options) {
  return {.operands = {source},
          .results = {destination},
          .words = words_of(options),
          .start_move =
              [=](const Shards& pieces) {  // the graph writes to no operand before finish_move
                return started_move(source, pieces, destination, options, /*may_change=*/false);
              },
          .for_sizes =
              [=](at::TensorList pieces) {
                const SpecPtr from = with_whole_sizes(source, pieces[0].sizes());
                return traced_move(from, with_whole_sizes(destination, from->sizes()), options);
              }};
}

}  // namespace

Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination, const PlanOptions& options,
            MoveMemory memory) {
  if (source == destination || (memory == MoveMemory::kShared && leaves_in_place(*source, *destination))) return shards;
  const bool is_on_meta = destination->mesh()->is_meta();
  if (is_on_meta && !source->mesh()->is_meta()) {  // first leaves the memory, then moves
    const SpecPtr on_meta = source->on(c10::kMeta);
    return move(on_meta, pieces_on_meta(*on_meta), destination, options, memory);
  }
  check_move(source, destination);
  check_no_traced_subclass(shards);
  BelowAutograd guard;
  if (is_traced(shards) && !is_on_meta) [[unlikely]] {
    const bool has_symbols = shardwise::has_symbols(shards), keeps = keep_symbols(shards, *source, *destination);
    const auto as_step = [&] {
      return add_step(traced_move(source, destination, options), keeps ? shards : without_symbols(shards));
    };
    if (is_opaque(source, destination, options)) return as_step();  // first: it may send, and all ranks answer alike
    if (has_symbols && may_slice(shards, *source, *destination))
      return {sliced(shards[0], source->boxes()[0], *destination)};
    if (has_symbols) return keeps ? as_step() : move(source, without_symbols(shards), destination, options, memory);
  }
  const auto layouts = [&] { return move_words(*source, *destination, options); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  const ProfilerSpan span([&] { return fmt::format("shardwise::move {}", layouts()); });
  Moving moving(source, shards, destination, options, memory == MoveMemory::kTaken);
  if (memory == MoveMemory::kShared)
    moving.run_for_readers();
  else
    run_to_end(moving, source->mesh() != destination->mesh());
  return moving.pieces();
}

std::optional<Shards> move_owned_rows(const DTensorImpl& tensor, const SpecPtr& destination) {
  const SpecPtr& source = tensor.spec();
  const auto& rows = tensor.owned_rows();
  if (!rows || source == destination || !rows->are_rows_of(source)) return std::nullopt;
  const BelowAutograd guard;
  const auto layouts = [&] { return move_words(*source, *destination, {}); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  const ProfilerSpan span([&] { return fmt::format("shardwise::move {}", layouts()); });
  return rows->move_as(destination);
}

Shards move(const DTensorImpl& tensor, const SpecPtr& destination, const PlanOptions& options, MoveMemory memory) {
  if (auto rows = move_owned_rows(tensor, destination)) return *std::move(rows);
  if (tensor.spec() == destination) return tensor.local_tensors();
  if (tensor.holds_subclass()) return move_subclass(tensor, destination);
  return move(tensor.spec(), tensor.shards(), destination, options, memory);
}

bool leaves_in_place(const Spec& source, const Spec& destination) {
  return source.mesh() == destination.mesh() &&
         hold_alike(source.placements(), destination.placements(), source.layout().grid().shape);
}

std::unique_ptr<PendingMove> start_move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination,
                                        const PlanOptions& options) {
  return started_move(source, shards, destination, options, /*may_change=*/true);
}

MoveCounters move_counters() {
  const PlanCache& plans = PlanCache::of_thread();
  const BufferCounters& buffers = BufferPool::of_thread().counters();
  return {plans.hits(), plans.misses(), plans.size(), buffers.hits, buffers.misses, buffers.kept_bytes};
}

}  // namespace shardwise
