// runtime/redistribute/plan_cache.h: a cache of plans, with one rank's part of each and its specs and boxes.
#pragma once

#include "plans/transfers.h"
#include "runtime/tensor/bounded_map.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <string>

namespace shardwise {

/// A step from the view of this rank.
struct OwnStep {
  Step step;
  SpecPtr from;
  SpecPtr to;
  Transfers part;                     // for exchanges and reductions
  bool is_local = false;              // no rank sends anything
  const DeviceMesh* among = nullptr;  // the mesh that contains the other one; null for the world
  /// If many ranks exchange little: the most bytes of a rank's pieces, so that it is faster to send them to all. Else 0.
  int64_t row_bytes = 0;
};

struct OwnPlan {
  std::vector<OwnStep> steps;
  int last_sending = -1;  // index of the last step that sends something
};

/// The options as a text, to tell plans of the same layouts apart: ", by time", links and caps; "" for the default options.
std::string words_of(const PlanOptions& options);

/// This thread's plans by source, destination and options. Bounded. Entries keep their specs alive.
class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 1024;

  static PlanCache& of_thread();

  /// Cost: a hash lookup for a cached plan, otherwise a plan() and this rank's transfers().
  std::shared_ptr<const OwnPlan> find_or_make(const SpecPtr& source, const SpecPtr& destination,
                                              const PlanOptions& options);

  /// Calls `see(source, plan)` for each plan.
  template <class See>
  void for_each(const See& see) const {
    plans_.for_each([&](const Entry& entry) { see(entry.source, *entry.plan); });
  }

  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  int64_t size() const { return static_cast<int64_t>(plans_.size()); }

 private:
  struct Key {
    Spec* source;
    Spec* destination;
    PlanOptions options;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    SpecPtr source, destination;
    std::shared_ptr<const OwnPlan> plan;
  };

  BoundedMap<Key, Entry, kMaxPlans, Hash> plans_;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

}  // namespace shardwise
