// runtime/comm/flight_dump.h: the flight recorders of this process as files, one per rank, for `python -m shardwise hang`.
//
// A file is written where a wait takes long (flight_watch.h), where one ends by an error, where the program asks for it, and on SIGUSR1 in processes
// that were started with SHARDWISE_DUMP_SIGNAL=1.
#pragma once

#include "runtime/comm/flight_recorder.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace shardwise {

/// Nanoseconds since 1970 of readings of c10::getApproximateTime(). Cost: some thousand readings of both clocks.
std::function<int64_t(uint64_t)> unix_clock();

/// What a recorder knows, as JSON: `reason` ("SIGUSR1"), the groups with their counts of calls, the communications with their times in
/// seconds since 1970, and where the program is, as far as the interpreter says so within a second.
std::string flight_json(const FlightRecorder& recorder, const std::string& reason);

/// The environment's SHARDWISE_DUMP_FOLDER, or shardwise-dumps-<user id> in the folder of temporary files. Absolute: a relative name counts from
/// the folder that was current when the process began, so a program may change its folder.
std::filesystem::path dump_folder();

/// Writes shardwise-rank<rank>-pid<pid>.json for each rank of this process (shardwise-rank<rank>-thread-pid<pid>.json where ranks are
/// threads), in place of an earlier one. Makes the folder.
/// Throws: c10::Error naming a file that cannot be written.
std::vector<std::string> dump_flights(const std::filesystem::path& folder, const std::string& reason);

/// The same for people who did not ask: into dump_folder(), without an exception, for ranks that are processes; for ranks that are
/// threads, whose errors name ranks already, only where the environment names a folder. Returns what was written.
std::vector<std::string> dump_unasked(const std::string& reason) noexcept;

/// dump_unasked() by a rank whose communication ended with an error.
void dump_after_failure(const FlightRecorder& recorder) noexcept;

}  // namespace shardwise
