// runtime/redistribute/plan_cache.h: one rank's part of a plan, with its specs and boxes, kept from move to move.
#pragma once

#include "plans/transfers.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <string>
#include <unordered_map>

namespace shardwise {

/// A step as this rank carries it out.
struct OwnStep {
  Step step;
  SpecPtr from;
  SpecPtr to;
  Transfers part;         // of exchanges and reductions
  bool is_local = false;  // no rank sends anything
};

struct OwnPlan {
  std::vector<OwnStep> steps;
  int last_sending = -1;  // the last step that sends something
};

/// What tells plans of the same layouts apart: ", by time", and links and caps; "" for the default options.
std::string words_of(const PlanOptions& options);

/// Plans of this thread by source, destination and options. Bounded: emptied when full. The entries keep their specs alive.
class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 1024;

  static PlanCache& of_thread();

  /// Cost: a hash where it is known, else a plan() and this rank's transfers().
  std::shared_ptr<const OwnPlan> find_or_make(const SpecPtr& source, const SpecPtr& destination,
                                              const PlanOptions& options);

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

  std::unordered_map<Key, Entry, Hash> plans_;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

}  // namespace shardwise
