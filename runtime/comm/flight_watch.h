// runtime/comm/flight_watch.h: a thread that looks at the flight recorders. Where a wait takes long it says who waits for whom and in
// what, and writes the records to files: a rank that never comes (`if rank == 0: loss.item()`) would otherwise be a hang without a word.
#pragma once

namespace shardwise {

/// Starts the thread, once per process. It warns of a wait after SHARDWISE_WAIT_WARNING seconds (30 where the environment does not say;
/// 0: never), once per wait, and calls dump_unasked().
///
/// With SHARDWISE_DUMP_SIGNAL=1 in the environment it writes the files of all ranks of this process to dump_folder() on SIGUSR1, also while the
/// others hang. The signal's handler only wakes it; where the program has a handler of its own, that one stays. Without the variable the
/// signal keeps its meaning.
void start_flight_watch();

/// start_flight_watch() where SHARDWISE_DUMP_SIGNAL=1 asks for it: a signal that comes before the first rank is there does not end the process.
void start_flight_watch_if_asked();

}  // namespace shardwise
