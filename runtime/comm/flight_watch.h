// runtime/comm/flight_watch.h: a thread that watches the flight recorders. When a wait takes long, it warns which rank waits for which
// others and in what call, and dumps the records to files. So a rank that never arrives (`if rank == 0: loss.item()`) is not a silent hang.
#pragma once

namespace shardwise {

/// Starts the thread, once per process. It warns once about each wait that takes longer than SHARDWISE_WAIT_WARNING seconds (30 if the
/// environment does not set it; 0: never), and calls dump_unasked().
///
/// With SHARDWISE_DUMP_SIGNAL=1 in the environment it dumps all ranks of this process to dump_folder() on SIGUSR1, even while the other
/// threads hang. The signal handler only wakes this thread; a handler that the program has installed is kept. Without the variable the
/// signal keeps its meaning.
void start_flight_watch();

/// start_flight_watch() if SHARDWISE_DUMP_SIGNAL=1 is set. Called early, so that a signal before the first rank exists does not end the
/// process.
void start_flight_watch_if_asked();

}  // namespace shardwise
