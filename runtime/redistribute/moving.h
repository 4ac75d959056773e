// runtime/redistribute/moving.h: one tensor on its way through the steps of its plan.
//
//   Moving moving(source, pieces, destination, {});
//   while (!moving.is_done()) ...                        // or moving.run()
//   moving.pieces();                                     // this rank's pieces of `destination`
#pragma once

#include "plans/plan.h"
#include "runtime/comm/collectives.h"
#include "runtime/redistribute/exchange_run.h"
#include "runtime/redistribute/plan_cache.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// Checks before a move between two meshes that all their ranks mean the same two. On a (dp=2, tp=2) mesh, mesh["dp"] and mesh["tp"] have different
/// ranks on each rank:
///
///   rank 0: [0, 2] and [0, 1]      rank 2: [0, 2] and [2, 3]
///
/// In a move between them, rank 0 would send to ranks that expect nothing from it.
///
/// Collective over both meshes, first over `from`; ranks outside both do nothing. If the meshes have no common rank, each mesh only
/// compares what its own ranks know.
///
/// Throws: c10::ValueError on all ranks of both meshes if they do not mean the same two meshes.
/// Cost: nothing if both have the same ranks. A gather of two numbers per rank if one mesh has all ranks of the other; otherwise three
/// gathers. CommTrace leaves them out.
void check_same_meshes(const DeviceMesh& from, const DeviceMesh& to);

/// Throws: c10::ValueError for different worlds, c10::NotImplementedError for a move out of meta. If the meshes differ, their ranks compare
/// them.
void check_move(const SpecPtr& source, const SpecPtr& destination);

/// The text of the move, for the order check.
std::string move_words(const Spec& from, const Spec& to, const PlanOptions& options);

bool takes_part(const OwnStep& own);
/// The mesh's group. For two meshes, the group of the one that contains the other; otherwise the world's group, where ranks outside both
/// meshes are absent.
Participants participants_of(const OwnStep& own);

/// A piece to be reduced, and its result, which may be the same tensor: the elements in a row, in the same order on all ranks.
struct Terms {
  at::Tensor terms;
  at::Tensor result;
};

class Moving {
 public:
  /// `owns`: nobody else needs the pieces' memory, and this move may write to it.
  /// Throws: c10::ValueError if the communication policy forbids the move, c10::TypeError if a dtype cannot be reduced.
  Moving(const SpecPtr& source, Shards pieces, const SpecPtr& destination, const PlanOptions& options,
         bool owns = false);

  const PlanOptions& options() const { return options_; }

  bool is_done() const { return next_ == plan_->steps.size(); }
  const OwnStep& next() const { return plan_->steps[next_]; }
  c10::Device device() const { return device_; }
  const Shards& pieces() const { return pieces_; }

  ExchangeItem item() const { return {&next().step, &next().part, next().from, next().to, pieces_, next().row_bytes}; }
  /// Takes the result of an exchange as the new pieces.
  void arrive(Shards pieces);

  /// Runs the next step. Pre: it is not an exchange of boxes.
  void run_in_place();
  /// Starts the next step, an all-reduce.
  std::vector<std::unique_ptr<Reduction>> start_reduction(WaitsFor waits);

  /// The group of the next step, an all-reduce.
  const GroupPtr& reducing_group() const {
    const DeviceMesh& mesh = *next().from->mesh();
    return next().step.mesh_dim < 0 ? mesh.group() : mesh.group(next().step.mesh_dim);
  }
  /// Prepares an all-reduce of each piece. The new pieces have the memory of the results.
  std::vector<Terms> begin_reduction();

  void skip() { ++next_; }

  /// Makes the pieces this move's own memory: copies them unless a step has made new ones.
  void own();

  /// Runs to the end, or stops before the last step that sends something.
  void run(bool stops_at_last_sending = false);

  /// Runs to the end. A step that only narrows this rank's pieces makes views of them, so nobody may write to the result.
  void run_for_readers();

  ExchangeRun begin() const { return ExchangeRun(participants_of(next()), {item()}, device_); }

 private:
  /// Takes the next step without a copy, if views of this rank's pieces are its result.
  bool take_views();
  void run_next();

  /// Makes replicas Partial: the first coordinate keeps the value, the others get the reduction's neutral element.
  void make_partial(const OwnStep& own);

  std::shared_ptr<const OwnPlan> plan_;
  Shards pieces_;
  c10::Device device_;
  PlanOptions options_;
  size_t next_ = 0;
  bool owns_;  // the pieces' memory
};

}  // namespace shardwise
