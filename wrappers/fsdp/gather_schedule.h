// wrappers/fsdp/gather_schedule.h: when the parameter groups of a model are gathered, released and reduced.
//
//   forward    group 0: gather, start 1's | compute | release    group 1: (ready), start 2's | compute | release    ...
//   backward   group 2: gather | first gradient: start 1's | compute | start to reduce, release    group 1: (ready) ... first gradient: finish 2's
//
// While one group computes, the next group is being gathered and one group is being reduced. The next group is the one that came next in the last
// pass. Small groups that follow it are gathered with it, in one exchange. Everything runs on the threads of the program and of its backward, in the
// order of the program, which is equal on all ranks.
#pragma once

#include "wrappers/fsdp/parameter_group.h"

#include <memory>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace shardwise {

using ParameterGroupPtr = std::shared_ptr<ParameterGroup>;

class GatherSchedule;
class UnitCall;

/// torch's reshard_after_forward. True frees gathered parameters after a forward, and false keeps them until the backward. With a number n, each rank
/// keeps one n-th of them, and gathers for the backward among n consecutive ranks. Nothing is false, and true once an outer module has a group, too.
using ReshardAfterForward = std::optional<std::variant<bool, int64_t>>;

/// A group in a schedule: its settings, and the calls of its modules (wrappers/fsdp/unit_call.h).
class GroupSchedule {
 public:
  /// Throws: c10::ValueError if the number of ranks over which `mesh` shards is no multiple of the given one.
  void set_reshard_after_forward(const ReshardAfterForward& given, const DeviceMesh& mesh);

  const ParameterGroupPtr& group() const { return group_; }
  /// Null before GatherSchedule::add().
  std::shared_ptr<GatherSchedule> schedule() const { return schedule_.lock(); }

  int64_t n_modules = 1;  // that compute with the group's parameters
  bool reshards_after_backward = true;
  bool reduces = true;        // else whole gradients are accumulated on each rank
  bool fills_unused = false;  // parameters without a gradient are reduced as zeros
  bool gathers_in_backward = true;
  /// The groups that are gathered ahead. If empty, the default.
  std::vector<std::weak_ptr<GroupSchedule>> ahead_in_forward, ahead_in_backward;
  std::vector<std::shared_ptr<UnitCall>> calls;  // running forwards, each within the one before

 private:
  friend class GatherSchedule;

  ParameterGroupPtr group_;
  std::weak_ptr<GatherSchedule> schedule_;
  bool reshards_after_forward_ = false;
  bool is_automatic_ = true;   // reshards_after_forward_ becomes true when an outer module has a group, too
  int64_t n_keeping_ = 0;      // after a forward, so many ranks keep slices to gather from in the backward; 0: none
  std::set<int64_t> ran_;      // modules that have run in this forward while others of the group have not
  int64_t n_forwards_ = 0;     // running forwards of its modules
  int64_t n_backwards_ = 0;    // running backwards of its modules
  bool is_unsettled_ = false;  // its gradients of this backward are not reduced or accumulated yet
  bool has_run_ = false;       // in a forward whose backward may still come
};

class GatherSchedule : public std::enable_shared_from_this<GatherSchedule> {
 public:
  /// Adds `group` to the schedule as `unit`. The schedule owns both.
  void add(const std::shared_ptr<GroupSchedule>& unit, ParameterGroupPtr group);
  /// Moves all groups of `other`, which are within a module of this one's, to this schedule. `other` keeps this schedule alive from now on.
  void take(GatherSchedule& other);
  /// Replaces the group of `unit`. Pre: no forward or backward is running.
  void replace(GroupSchedule& unit, ParameterGroupPtr group);

  /// Called before the forward of a module of `unit`. Within a backward (activation checkpointing computes a forward again) nothing is released.
  void enter_forward(GroupSchedule& unit);
  /// Called after the forward. `module` identifies the module among those of the unit: the group is released when all of them have run, or when the
  /// forward of the outermost module ends. `releases`: false keeps it until the backward. `has_backward`: an output has a gradient. Then a group that
  /// is not resharded after the forward stays in its modules until the backward.
  void leave_forward(GroupSchedule& unit, int64_t module, bool releases, bool has_backward);
  /// Called before and after the backward of a module's call, once for each call. The backward of a call may begin before that of a later call has
  /// ended.
  void before_backward(GroupSchedule& unit);
  void after_backward(GroupSchedule& unit);

  /// The number of backwards that have ended or failed. It distinguishes several backwards of one forward (retain_graph=True).
  int64_t n_ended();

  /// If false, the order of groups is kept at the end of a backward, because another backward of the same forward follows.
  void set_last_backward(bool is_last) { is_last_backward_ = is_last; }
  /// Called after a failed forward or backward. Waits for gathers in progress and releases all groups. Gradients that were not reduced are dropped.
  void reset();

 private:
  void reshard_after_forward(const GroupSchedule& unit);
  void gather_ahead_in_forward(const GroupSchedule& unit);
  void gather_ahead_in_backward();
  /// True if some ranks' losses may ignore the group's outputs. Then missing gradients are zeros, and the group is reduced at the end of the
  /// backward.
  static bool may_be_ignored(const GroupSchedule& unit);
  void begin_backward();
  void listen(const ParameterGroupPtr& group);
  void finish_reduction();
  /// True if gradients have arrived, or if zeros replace them.
  static bool has_gradients_to_finish(const GroupSchedule& unit);
  /// Reduces the gradients that have arrived, or accumulates them.
  void finish_gradients(GroupSchedule& unit);
  void release_after_backward(const GroupSchedule& unit);
  void end_backward();
  void drop_backward();
  void drop_failed_backward();

  std::vector<std::shared_ptr<GroupSchedule>> units_;  // first that of the outermost module
  std::shared_ptr<GatherSchedule> taken_by_;
  size_t n_open_ = 0;                                     // nested running forwards of groups
  std::vector<GroupSchedule*> entered_, entered_before_;  // in this outermost forward, and in the last
  std::vector<GroupSchedule*> left_;                      // in the order left, since the last backward
  int64_t n_awaited_ = 0;  // forwards of outermost modules whose backward has not run yet
  ParameterGroupPtr reducing_;
  GroupSchedule* computing_ = nullptr;  // its backward runs, and the next group is not being gathered yet
  int64_t n_ended_ = 0;
  bool is_in_backward_ = false;
  std::weak_ptr<void> backward_;  // held by the engine until the backward ends or fails
  bool is_last_backward_ = true;
};

}  // namespace shardwise
