// wrappers/distributed_embedding/input_error.h: what is wrong with one rank's input becomes an error on all ranks.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <string>
#include <vector>

namespace shardwise {

/// An exception as another rank can throw it, too.
struct InputError {
  enum class Kind : uint8_t { kNone, kRuntime, kValue, kIndex, kType, kNotImplemented };
  Kind kind = Kind::kNone;
  std::string text;

  /// What ranks tell each other first.
  struct Notice {
    Kind kind = Kind::kNone;
    int64_t length = 0;  // of the text
  };
  Notice notice() const { return {kind, static_cast<int64_t>(text.size())}; }

  /// The exception being handled.
  static InputError current();
  /// Throws: the C++ exception of its kind.
  [[noreturn]] void raise() const;
};

/// Throws: on all ranks the error of the first rank that has one. `notices`: of all ranks, in the order of the mesh's group, known to all.
/// Collective where there is an error: it sends the texts.
void raise_first(const DeviceMesh& mesh, const InputError& own, const std::vector<InputError::Notice>& notices);

/// The same where ranks do not know of each other yet. Collective: one exchange of two numbers.
void raise_together(const DeviceMesh& mesh, const InputError& own);

}  // namespace shardwise
