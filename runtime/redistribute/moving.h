// runtime/redistribute/moving.h: one tensor on its way from layout to layout, step by step of its plan.
//
//   Moving moving(source, pieces, destination, {});
//   while (!moving.is_done()) ...                        // or moving.run()
//   moving.pieces();                                     // this rank's, as `destination`
#pragma once

#include "plans/plan.h"
#include "runtime/comm/collectives.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/plan_cache.h"
#include "runtime/tensor/shards.h"

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// Throws: c10::ValueError for differing worlds, c10::NotImplementedError out of meta. Compares meshes that are not the same.
void check_move(const SpecPtr& source, const SpecPtr& destination);

/// For the order check.
std::string move_words(const Spec& from, const Spec& to, const PlanOptions& options);

bool has_boxes(const OwnStep& own);
bool takes_part(const OwnStep& own);
/// The mesh's group; of two meshes that of the one that contains the other; else the world's, and ranks outside both are absent.
Participants participants_of(const OwnStep& own);

class Moving {
 public:
  /// Throws: c10::ValueError where the communication policy forbids the move, c10::TypeError for what cannot be reduced.
  Moving(const SpecPtr& source, Shards pieces, const SpecPtr& destination, const PlanOptions& options);

  const PlanOptions& options() const { return options_; }

  bool is_done() const { return next_ == plan_->steps.size(); }
  const OwnStep& next() const { return plan_->steps[next_]; }
  c10::Device device() const { return device_; }
  const Shards& pieces() const { return pieces_; }

  ExchangeItem item() const { return {&next().step, &next().part, next().from, next().to, pieces_}; }
  /// What an exchange gave.
  void arrive(Shards pieces);

  /// Runs the next step, unless it is one with boxes.
  void run_in_place();
  /// The same, but for the end of an all-reduce.
  std::vector<std::unique_ptr<Reduction>> start_in_place();

  /// The ranks that an all-reduce, the next step, is among.
  const GroupPtr& reducing_group() const { return next().from->mesh()->group(next().step.mesh_dim); }
  /// Before an all-reduce: the elements of each piece in a row, to be reduced in place.
  std::vector<at::Tensor> begin_reduction();

  void skip() { ++next_; }

  /// The pieces are memory of this move: where no step gave new ones, and nothing else did, they are copied.
  void own();

  /// Runs to the end, or to the last step that sends something.
  void run(bool stops_at_last_sending = false);

  ExchangeRun begin() const { return ExchangeRun(participants_of(next()), {item()}, device_); }

 private:
  /// Replicas that become Partial: the first coordinate keeps the value, the others hold the reduction's identity.
  void make_partial(const OwnStep& own);

  std::shared_ptr<const OwnPlan> plan_;
  Shards pieces_;
  c10::Device device_;
  PlanOptions options_;
  size_t next_ = 0;
  bool owns_ = false;
};

}  // namespace shardwise
