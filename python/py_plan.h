// python/py_plan.h: the plan in a Python shardwise.Plan.
#pragma once

#include "plans/plan.h"
#include "plans/traffic.h"

#include <mutex>
#include <optional>

namespace shardwise {

/// A plan and its cached summary. Shared by Python threads.
class PyPlan {
 public:
  PyPlan(Plan plan, MeshNames names, double planning_us)
      : plan_(std::move(plan)), names_(std::move(names)), planning_us_(planning_us) {}

  const Plan& plan() const { return plan_; }
  /// The names of the mesh dims; none for a plan between Layouts.
  const MeshNames& names() const { return names_; }
  double planning_us() const { return planning_us_; }
  /// Over all ranks; computed at first use.
  const Summary& summary() const {
    const std::scoped_lock lock(mutex_);
    if (!summary_) summary_ = summarize(plan_);
    return *summary_;
  }

 private:
  Plan plan_;
  MeshNames names_;
  double planning_us_;
  mutable std::mutex mutex_;
  mutable std::optional<Summary> summary_;
};

}  // namespace shardwise
