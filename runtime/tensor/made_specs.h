// runtime/tensor/made_specs.h: keeps the specs that are made in a period.
#pragma once

#include "runtime/tensor/spec.h"

#include <vector>

namespace shardwise {

/// Keeps each spec that any thread makes, until stop().
class MadeSpecs {
 public:
  /// Throws: c10::ValueError if another one is open.
  MadeSpecs();
  ~MadeSpecs() { stop(); }
  MadeSpecs(const MadeSpecs&) = delete;
  MadeSpecs& operator=(const MadeSpecs&) = delete;

  /// Lets them go. A second call does nothing.
  void stop();
  std::vector<SpecPtr> specs() const;

 private:
  bool is_open_ = true;
};

}  // namespace shardwise
