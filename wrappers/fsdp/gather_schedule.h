// wrappers/fsdp/gather_schedule.h: when the parameter groups of a model are gathered, released and reduced.
//
//   forward    group 0: gather, start 1's | compute | release    group 1: (ready), start 2's | compute | release    ...
//   backward   group 2: gather | first gradient: start 1's | compute | start to reduce, release    group 1: (ready) ... first gradient: finish 2's
//
// While one group computes, the next group is being gathered and one group is being reduced. The next group is the one that came next in the last
// pass. Everything runs on the threads of the program and of its backward, in the order of the program, which is equal on all ranks.
#pragma once

#include "wrappers/fsdp/parameter_group.h"

#include <memory>
#include <vector>

namespace shardwise {

using ParameterGroupPtr = std::shared_ptr<ParameterGroup>;

/// The settings of one group.
struct GroupSchedule {
  bool reshards_after_forward = true;
  int64_t n_keeping = 0;  // after a forward, so many ranks keep slices to gather from in the backward; 0: none
  bool reshards_after_backward = true;
  bool reduces = true;        // else whole gradients are accumulated on each rank
  bool fills_unused = false;  // parameters without a gradient are reduced as zeros
  bool gathers_in_backward = true;
  /// The groups that are gathered ahead. If empty, the default.
  std::vector<std::weak_ptr<ParameterGroup>> ahead_in_forward, ahead_in_backward;
};

class GatherSchedule : public std::enable_shared_from_this<GatherSchedule> {
 public:
  /// Adds `group` to the schedule.
  void add(const ParameterGroupPtr& group, std::shared_ptr<GroupSchedule> settings);
  /// Moves all groups of `other` to this schedule.
  void take(GatherSchedule& other);
  /// Replaces `old` by `fresh`. Pre: no forward or backward is running.
  void replace(const ParameterGroup& old, const ParameterGroupPtr& fresh);

  /// Called before the forward of a module of `group`. Within a backward (activation checkpointing computes a forward again) nothing is released.
  void enter_forward(const ParameterGroupPtr& group);
  /// Called after the forward. `releases`: all modules of the group have run.
  void leave_forward(const ParameterGroupPtr& group, bool releases = true);
  /// Called after the forward of the outermost module if not all modules of `group` have run.
  void reshard_after_forward(const ParameterGroupPtr& group);
  /// Called before and after the backward of a module's call, once for each call. The backward of a call may begin before that of a later call has
  /// ended.
  void before_backward(const ParameterGroupPtr& group);
  void after_backward(const ParameterGroupPtr& group);

  /// The number of backwards that have ended or failed. It distinguishes several backwards of one forward (retain_graph=True).
  int64_t n_ended();

  /// If false, the order of groups is kept at the end of a backward, because another backward of the same forward follows.
  void set_last_backward(bool is_last) { is_last_backward_ = is_last; }
  /// Called after a failed forward or backward. Waits for gathers in progress and releases all groups. Gradients that were not reduced are dropped.
  void reset();

 private:
  struct Member {
    ParameterGroupPtr group;
    std::shared_ptr<GroupSchedule> settings;
    int64_t n_forwards = 0;     // running forwards of its modules
    int64_t n_backwards = 0;    // running backwards of its modules
    bool is_unsettled = false;  // its gradients of this backward are not reduced or accumulated yet
    bool has_run = false;       // in a forward whose backward may still come
  };

  Member* find(const ParameterGroup* group);
  Member& member_of(const ParameterGroup& group);
  void gather_ahead_in_forward(const GroupSchedule& settings);
  void gather_ahead_in_backward();
  /// True if some ranks' losses may ignore the group's outputs. Then missing gradients are zeros, and the group is reduced at the end of the
  /// backward.
  static bool may_be_ignored(const GroupSchedule& settings);
  void begin_backward();
  void listen(const ParameterGroupPtr& group);
  void finish_reduction();
  /// True if gradients have arrived, or if zeros replace them.
  static bool has_gradients_to_finish(const Member& member);
  /// Reduces the gradients that have arrived, or accumulates them.
  void finish_gradients(Member& member);
  void release_after_backward(const Member& member);
  void end_backward();
  void drop_backward();
  void drop_failed_backward();

  std::vector<Member> members_;
  size_t n_open_ = 0;                                      // nested running forwards of groups
  std::vector<ParameterGroup*> entered_, entered_before_;  // in this outermost forward, and in the last
  std::vector<ParameterGroup*> left_;                      // groups in the order left, since the last backward
  int64_t n_awaited_ = 0;  // forwards of outermost modules whose backward has not run yet
  ParameterGroupPtr reducing_;
  ParameterGroupPtr computing_;  // group whose backward runs and whose next group is not being gathered yet
  int64_t n_ended_ = 0;
  bool is_in_backward_ = false;
  std::weak_ptr<void> backward_;  // held by the engine until the backward ends or fails
  bool is_last_backward_ = true;
};

}  // namespace shardwise
