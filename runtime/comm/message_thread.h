// runtime/comm/message_thread.h: a thread that writes a rank's messages.
//
// Note [Messages have a thread]: Gloo locks a connection while it writes to it, and wakes the thread of the receiver. If ranks share cores, the
// scheduler may let another thread run in place of the writer. Until the writer runs again it holds the lock, and Gloo's own thread spins if
// something arrives on the connection, on Linux until the next tick of the scheduler, 4 ms. Four rules keep this rare. Gloo's threads and the writer
// are batch jobs for the scheduler: they interrupt no thread when they wake. These are the Gloo threads of the whole process, also those of groups
// that the program made for itself. A thread that only writes messages is rarely interrupted. Its jobs compute nothing, and large messages are jobs
// of their own, so that a job ends before the scheduler lets another thread run. Short messages go along a tree, whose connections carry messages in
// one direction at a time (tagged_messages.h).
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <future>

namespace shardwise {

/// Runs `job` on the message thread of the calling thread, waits for it, and throws what it throws. The job runs below autograd, and its operators
/// use one thread. For tensors on another `device` than the CPU the calling thread runs it, on its own stream. A background job runs it directly.
/// Do not call it in a job of its own.
void run_on_message_thread(c10::Device device, const std::function<void()>& job);

/// Makes all of this process's threads of Gloo batch jobs, on Linux: Note [Messages have a thread].
void calm_gloo_threads();

/// Starts `job` in a thread of its own, below autograd, with operators that use that thread alone. The job owns what it uses: nobody need wait for
/// it. Cost: about 20 us.
std::future<void> run_in_background(std::function<void()> job);

}  // namespace shardwise
