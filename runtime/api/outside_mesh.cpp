#include "runtime/api/outside_mesh.h"

#include <atomic>

namespace shardwise {
namespace {

std::atomic<bool> answers_outside = false;

}  // namespace

void AnswersOutside::set(bool are_on) { answers_outside = are_on; }
bool AnswersOutside::are_on() { return answers_outside; }

}  // namespace shardwise
