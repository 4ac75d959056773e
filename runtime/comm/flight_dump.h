// runtime/comm/flight_dump.h: the flight recorders of this process as files, one per rank, for `python -m shardwise hang`.
//
// A file is written when a wait takes long (flight_watch.h), when a wait ends with an error, when the program asks for it, and on SIGUSR1
// in processes that were started with SHARDWISE_DUMP_SIGNAL=1.
#pragma once

#include "runtime/comm/flight_recorder.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace shardwise {

/// Converts readings of c10::getApproximateTime() to nanoseconds since 1970. Cost: some thousand readings of both clocks.
std::function<int64_t(uint64_t)> unix_clock();

/// A recorder's contents as JSON: `reason` ("SIGUSR1"), the groups with their call counts, the communications with their times in seconds
/// since 1970, and the program's stack if the interpreter gives it within a second.
std::string flight_json(const FlightRecorder& recorder, const std::string& reason);

/// SHARDWISE_DUMP_FOLDER from the environment, or shardwise-dumps-<user id> in the folder of temporary files. Absolute: a relative name is
/// resolved against the folder in which the process started, so the program may change its folder.
std::filesystem::path dump_folder();

/// Writes shardwise-rank<rank>-pid<pid>.json for each rank of this process (shardwise-rank<rank>-thread-pid<pid>.json if ranks are
/// threads), over earlier ones. Creates the folder.
/// Throws: c10::Error naming a file that cannot be written.
std::vector<std::string> dump_flights(const std::filesystem::path& folder, const std::string& reason);

/// Dumps that nobody asked for: writes into dump_folder() and never throws. Ranks that are threads are dumped only if the environment names
/// a folder, because their errors name ranks already. Returns the written paths.
std::vector<std::string> dump_unasked(const std::string& reason) noexcept;

/// Calls dump_unasked() for a rank whose communication ended with an error.
void dump_after_failure(const FlightRecorder& recorder) noexcept;

}  // namespace shardwise
