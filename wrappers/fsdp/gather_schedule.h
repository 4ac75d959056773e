// wrappers/fsdp/gather_schedule.h: when the parameter groups of a model are gathered, released and reduced.
//
//   forward    group 0: gather, start 1's | compute | release    group 1: (there), start 2's | compute | release    ...
//   backward   group 2: gather | first gradient: start 1's | compute | start to reduce, release    group 1: (there) ... first gradient: finish 2's
//
// One group ahead is on its way while another computes, and one reduction. Which comes next is what came next the last time. All of it
// runs on the thread of the program and of its backward, in the order of the program, which is the same on all ranks.
#pragma once

#include "wrappers/fsdp/parameter_group.h"

#include <memory>
#include <vector>

namespace shardwise {

using ParameterGroupPtr = std::shared_ptr<ParameterGroup>;

/// What a program sets of one group.
struct GroupSchedule {
  bool reshards_after_forward = true;
  int64_t n_keeping = 0;  // ranks that keep slices then, from which they gather for the backward; 0: none keeps any
  bool reshards_after_backward = true;
  bool reduces = true;        // else gradients are added up, whole, on each rank
  bool fills_unused = false;  // parameters without a gradient are reduced as zeros
  bool gathers_in_backward = true;
  /// What is gathered ahead; the default where they are empty.
  std::vector<std::weak_ptr<ParameterGroup>> ahead_in_forward, ahead_in_backward;
};

class GatherSchedule : public std::enable_shared_from_this<GatherSchedule> {
 public:
  /// Makes `group` one of this model's.
  void add(const ParameterGroupPtr& group, std::shared_ptr<GroupSchedule> settings);
  /// The groups of `other` are this one's, too; that is empty then.
  void take(GatherSchedule& other);
  /// `fresh` stands where `old` stood. Pre: no forward or backward is running.
  void replace(const ParameterGroup& old, const ParameterGroupPtr& fresh);

  /// Before and after the forward of a module of `group`. Within a backward, where a checkpoint computes again, nothing is released.
  void enter_forward(const ParameterGroupPtr& group);
  /// `releases`: its modules have been through.
  void leave_forward(const ParameterGroupPtr& group, bool releases = true);
  /// After the forward of the outermost module, where not all modules of `group` have been through.
  void reshard_after_forward(const ParameterGroupPtr& group);
  /// Before the backward of that call, and after it: once for each call. A backward may begin before that of a later call has ended.
  void before_backward(const ParameterGroupPtr& group);
  void after_backward(const ParameterGroupPtr& group);

  /// How many backwards have ended, or failed. Tells those of one forward apart, of which there are several with retain_graph=True.
  int64_t n_ended();

  /// False keeps what is on its way, and the order of groups, after a backward that others of the same forward follow.
  void set_last_backward(bool is_last) { is_last_backward_ = is_last; }
  /// After a forward or a backward that failed: waits for what is on its way, and releases all. Gradients that were not reduced are dropped.
  void reset();

 private:
  struct Member {
    ParameterGroupPtr group;
    std::shared_ptr<GroupSchedule> settings;
    int64_t n_forwards = 0;     // calls of its modules that run
    int64_t n_backwards = 0;    // calls of its modules whose backward runs
    bool is_unsettled = false;  // in this backward, gradients of it were not reduced or added up yet
    bool has_run = false;       // in a forward with gradients whose backward may still come
  };

  Member* find(const ParameterGroup* group);
  Member& member_of(const ParameterGroup& group);
  void gather_ahead_in_forward(const GroupSchedule& settings);
  void gather_ahead_in_backward();
  /// In a backward, zeros may stand for gradients of the group, and ranks whose loss ignores its outputs come to it at the end.
  static bool may_be_ignored(const GroupSchedule& settings);
  void begin_backward();
  void listen(const ParameterGroupPtr& group);
  void finish_reduction();
  /// Gradients have come, or zeros stand for them.
  static bool has_gradients_to_finish(const Member& member);
  /// Reduces what has come, or adds it up.
  void finish_gradients(Member& member);
  void release_after_backward(const Member& member);
  void end_backward();
  void drop_backward();
  void drop_failed_backward();

  std::vector<Member> members_;
  size_t n_open_ = 0;                                      // forwards of groups, one within another
  std::vector<ParameterGroup*> entered_, entered_before_;  // in this forward of the outermost module, and in the last
  std::vector<ParameterGroup*> left_;                      // since the last backward
  int64_t n_awaited_ = 0;  // forwards of outermost modules, with gradients, whose backward has not come
  ParameterGroupPtr reducing_;
  ParameterGroupPtr computing_;  // whose backward runs, and what waits to be gathered ahead of it is not on its way yet
  int64_t n_ended_ = 0;
  bool is_in_backward_ = false;
  std::weak_ptr<void> backward_;  // what the engine holds of it, until it ends or fails
  bool is_last_backward_ = true;
};

}  // namespace shardwise
