#include "runtime/comm/flight_dump.h"

#include "runtime/comm/caller.h"
#include "text/check.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

namespace shardwise {
namespace {

using DumpJson = nlohmann::ordered_json;

constexpr std::array kStates{"under way", "done", "failed"};  // by FlightRecord::Outcome

/// The current folder when this library is loaded; empty if the system does not say.
const std::filesystem::path first_folder = [] {
  std::error_code error;
  return std::filesystem::current_path(error);
}();

/// Created when the first world begins, so that its two clock readings are far apart when the times are converted.
c10::ApproximateClockToUnixTimeConverter& clock_converter() {
  static auto* const converter = new c10::ApproximateClockToUnixTimeConverter;
  return *converter;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The start time of this process, in seconds since 1970; 0 if the system does not say.
double process_began() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(
      text.substr(std::min(text.size(), text.rfind(')') + 2)));  // a program's name may have blanks
  std::string field;
  for (int number = 3; number <= 22; ++number)
    fields >> field;  // the 22nd field: the start time in clock ticks since boot
  timespec now{};
  if (!fields || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double since_boot = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  const double age = since_boot - std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return seconds(c10::getTimeSinceEpoch()) - age;
}

/// Equal on all ranks of a run, and different in other runs at the same time, as far as torchrun's environment tells.
std::string run_id() {
  std::string id;
  for (const char* const name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') id += (id.empty() ? "" : " ") + std::string(value);
  }
  return id;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  auto partial = path;  // a reader never sees half a file
  partial += fmt::format(".{}.partial", ::gettid());
  std::ofstream file(partial, std::ios::binary);
  file << text << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial, path, error);
  const bool is_written = file && !error;
  if (!is_written) std::filesystem::remove(partial, error);
  SW_CHECK(is_written,
           "[dump] {} cannot be written. Give a writable folder, with SHARDWISE_DUMP_FOLDER or dump(folder).",
           path.string());
}

}  // namespace

std::function<int64_t(uint64_t)> unix_clock() {
  const auto convert = clock_converter().makeConverter();
  return [convert](uint64_t ticks) { return static_cast<int64_t>(convert(ticks)); };
}

std::string flight_json(const FlightRecorder& recorder, const std::string& reason) {
  const auto to_ns = unix_clock();
  std::map<const GroupCalls*, size_t> group_numbers;
  DumpJson groups = DumpJson::array();
  for (const GroupCalls* group : recorder.groups()) {
    group_numbers.emplace(group, groups.size());
    groups.push_back({{"ranks", group->ranks}, {"calls", group->n_calls.load()}});
  }
  const auto details = recorder.details();
  DumpJson communications = DumpJson::array();
  for (const FlightRecord& record : recorder.records()) {
    DumpJson item = {
        {"number", record.number},
        {"group", group_numbers.contains(record.group) ? DumpJson(group_numbers[record.group]) : DumpJson()},
        {"call", record.call},
        {"name", record.name},
        {"operator", record.op.data()},
        {"asked_for", record.is_asked_for},
        {"dtype", record.dtype < 0 ? "" : c10::toString(static_cast<c10::ScalarType>(record.dtype))},
        {"bytes_sent", record.bytes_sent},
        {"bytes_received", record.bytes_received},
        {"state", kStates[static_cast<size_t>(record.outcome)]},
        {"begin", seconds(to_ns(record.begin))}};
    if (record.waits_since != 0) item["waits_since"] = seconds(to_ns(record.waits_since));
    if (record.end != 0) item["end"] = seconds(to_ns(record.end));
    if (const auto event = details.find(record.number); event != details.end()) {
      if (!event->second->layouts.empty()) item["layouts"] = event->second->layouts;
      if (!event->second->source.empty()) item["source"] = event->second->source;
    }
    communications.push_back(std::move(item));
  }
  const CallerStack stack = caller_stack(recorder.thread());
  DumpJson dump = {{"version", 1},
                   {"rank", recorder.rank()},
                   {"ranks", recorder.n_ranks()},
                   {"pid", ::getpid()},
                   {"host", host_name()},
                   {"began", process_began()},
                   {"run", run_id()},
                   {"reason", reason},
                   {"time", seconds(c10::getTimeSinceEpoch())},
                   {"line", stack.program_line},
                   {"stack", stack.lines}};
  if (!stack.why_unknown.empty()) dump["no_stack"] = stack.why_unknown;
  dump["groups"] = std::move(groups);
  dump["communications"] = std::move(communications);
  // Invalid UTF-8, such as the cut end of a long name, becomes a replacement character.
  return dump.dump(1, ' ', false, DumpJson::error_handler_t::replace);
}

std::filesystem::path dump_folder() {
  const char* const given = std::getenv("SHARDWISE_DUMP_FOLDER");
  if (given != nullptr && *given != '\0') return (first_folder / given).lexically_normal();
  std::error_code error;
  auto temporary = std::filesystem::temp_directory_path(error);
  if (error) temporary = "/tmp";
  return (first_folder / temporary / fmt::format("shardwise-dumps-{}", ::getuid())).lexically_normal();
}

std::vector<std::string> dump_flights(const std::filesystem::path& folder, const std::string& reason) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // if this fails, writing the file fails as well
  std::vector<std::string> written;
  for (const FlightRecorder* recorder : FlightRecorder::all()) {
    const char* const kind = recorder->is_thread() ? "-thread" : "";  // of a process that may also be a rank itself
    const auto path = folder / fmt::format("shardwise-rank{}{}-pid{}.json", recorder->rank(), kind, ::getpid());
    write_file(path, flight_json(*recorder, reason));
    written.push_back(path.string());
  }
  return written;
}

std::vector<std::string> dump_unasked(const std::string& reason) noexcept {
  try {
    const bool has_folder = std::getenv("SHARDWISE_DUMP_FOLDER") != nullptr;
    for (const FlightRecorder* recorder : FlightRecorder::all())
      if (recorder->is_thread() && !has_folder) return {};
    return dump_flights(dump_folder(), reason);
  } catch (const std::exception&) {
    return {};  // the hang or the error matters more
  }
}

void dump_after_failure(const FlightRecorder& recorder) noexcept {
  if (!recorder.is_thread()) dump_unasked("a communication failed");
}

}  // namespace shardwise
