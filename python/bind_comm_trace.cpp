#include "python/thread_recording.h"
#include "runtime/comm/comm_trace.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace shardwise {
namespace {

/// Records the collectives that a program calls itself, functional ones and those of torch.distributed. While this object lives, a callback on this
/// thread's operators reports them to the thread's traces.
class PlainCollectives {
 public:
  PlainCollectives()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&entered, &left).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~PlainCollectives() { at::removeCallback(handle_); }
  PlainCollectives(const PlainCollectives&) = delete;
  PlainCollectives& operator=(const PlainCollectives&) = delete;

 private:
  struct Inside : at::ObserverContext {
    Inside() { ++depth(); }
    ~Inside() override { --depth(); }
    /// A functional collective calls one of torch.distributed: only the outer one counts.
    static int& depth() {
      static thread_local int n = 0;
      return n;
    }
  };

  /// "all_gather" for "_c10d_functional::all_gather_into_tensor", "allreduce" for "c10d::allreduce_"; "" for an operator that is no collective.
  static std::string_view kind_of(std::string_view op) {
    const bool is_functional = op.starts_with("_c10d_functional::") || op.starts_with("_c10d_functional_autograd::");
    if (!is_functional && !op.starts_with("c10d::")) return "";
    std::string_view name = op.substr(op.find("::") + 2);
    constexpr std::array kParts{"reduce", "gather", "scatter", "all_to_all", "alltoall", "broadcast"};
    if (std::ranges::none_of(kParts, [&](const char* part) { return name.find(part) != name.npos; })) return "";
    for (const std::string_view end : {"_", "_into_tensor", "_tensor", "_single"})
      if (name.ends_with(end)) name.remove_suffix(end.size());
    return name;
  }

  static int64_t group_size(c10::ArrayRef<const c10::IValue> inputs) {
    for (const c10::IValue& input : inputs) {
      if (input.isCustomClass() && input.type()->str().ends_with("c10d.ProcessGroup"))
        return input.toCustomClass<c10d::ProcessGroup>()->getSize();
      if (&input == &inputs.back() && input.isString())
        return c10d::resolve_process_group(input.toStringRef())->getSize();
    }
    return 0;
  }

  static std::unique_ptr<at::ObserverContext> entered(const at::RecordFunction& call) {
    const std::string_view kind = kind_of(call.name());
    if (kind.empty() || Inside::depth() > 0 || *CommScope::current_op() != '\0') return nullptr;
    const CommScope scope(call.name());
    CommTrace::record(std::string(kind).c_str(), group_size(call.inputs()), 0, 0);
    return std::make_unique<Inside>();
  }
  static void left(const at::RecordFunction& /*call*/, at::ObserverContext* /*inside*/) {}

  at::CallbackHandle handle_;
};

struct CommRecording : TraceRecording<CommTrace, CommEvent, &CommTrace::events> {
  CommRecording() {
    // All open traces of the thread share one callback, because each callback reports to all of them.
    static thread_local std::weak_ptr<PlainCollectives> shared;
    plain = shared.lock();
    if (!plain) shared = plain = std::make_shared<PlainCollectives>();
  }
  void stop() {
    TraceRecording::stop();
    plain.reset();
  }
  std::shared_ptr<PlainCollectives> plain;
};

}  // namespace

void bind_comm_trace(py::module_& module) {
  py::class_<CommEvent>(module, "CommEvent",
                        "One collective as one rank saw it; bytes exclude what a rank sends to itself."
                        "\n\n"
                        ">>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])\n"
                        ">>> with sw.CommDebugMode() as comm:\n"
                        "...     y = x.full_tensor()\n"
                        ">>> event = comm.events[0]\n"
                        ">>> event.collective, event.n_ranks, event.bytes_received\n"
                        "('all_gather', 4, 96)")
      .def_readonly("collective", &CommEvent::collective)
      .def_readonly("op", &CommEvent::op, "The operator that asked for it, or the plain collective.")
      .def_readonly("n_ranks", &CommEvent::n_ranks)
      .def_readonly("bytes_sent", &CommEvent::bytes_sent)
      .def_readonly("bytes_received", &CommEvent::bytes_received)
      .def("__repr__", [](const CommEvent& self) {
        return fmt::format("CommEvent({} of {} ranks for {}: {} bytes sent, {} received)", self.collective,
                           self.n_ranks, self.op, self.bytes_sent, self.bytes_received);
      });
  using Trace = ThreadRecording<CommRecording>;
  const auto events = [](const Trace& self) {
    return self.see([](const CommRecording& seen) { return seen.events(); });
  };
  bind_recording<CommRecording>(
      module, "CommTrace", "CommDebugMode",
      "Records the collectives of this thread between open() and close(), plain ones without bytes.")
      .def("__len__", [=](const Trace& self) { return events(self).size(); })
      .def("events", events);
}

}  // namespace shardwise
