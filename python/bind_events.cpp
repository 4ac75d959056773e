#include "python/bindings.h"
#include "python/package.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/events.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/flight_watch.h"
#include "runtime/comm/traffic_meter.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

namespace shardwise {
namespace {

/// Records the collectives that a program calls itself, functional ones and those of torch.distributed. While this object lives, a callback on this
/// thread's operators adds them to the thread's stream of events.
class PlainCollectives {
 public:
  /// All open recordings of the thread share one, because each would add an event.
  static std::shared_ptr<PlainCollectives> of_thread() {
    static thread_local std::weak_ptr<PlainCollectives> shared;
    auto known = shared.lock();
    if (!known) shared = known = std::make_shared<PlainCollectives>();
    return known;
  }

  PlainCollectives()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&entered, &left).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~PlainCollectives() { at::removeCallback(handle_); }
  C10_DISABLE_COPY_AND_ASSIGN(PlainCollectives);

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
    constexpr std::array kParts{"reduce",    "gather",  "scatter", "all_to_all", "alltoall",
                                "broadcast", "barrier", "send",    "recv"};
    if (std::ranges::none_of(kParts, [&](const char* part) { return name.find(part) != name.npos; })) return "";
    for (const std::string_view end : {"_", "_into_tensor", "_tensor", "_single"})
      if (name.ends_with(end)) name.remove_suffix(end.size());
    return name;
  }

  /// The ranks of the call's group, and the index of this rank among them. No ranks if the call has no group.
  struct Members {
    std::vector<int64_t> ranks;
    int64_t own = 0;
    int64_t n() const { return static_cast<int64_t>(ranks.size()); }
  };

  static Members members_of(c10::ArrayRef<c10::IValue> inputs) {
    for (const c10::IValue& input : inputs) {
      const bool is_group = input.isCustomClass() && input.type()->str().ends_with("c10d.ProcessGroup");
      if (!is_group && !(&input == &inputs.back() && input.isString())) continue;
      const auto group =
          is_group ? input.toCustomClass<c10d::ProcessGroup>() : c10d::resolve_process_group(input.toStringRef());
      const py::gil_scoped_acquire gil;
      return {package().ranks_of(group->getGroupName()).cast<std::vector<int64_t>>(), group->getRank()};
    }
    return {};
  }

  /// The bytes of the tensors in a value or in a list of lists.
  static int64_t bytes_in(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() ? static_cast<int64_t>(value.toTensor().nbytes()) : 0;
    int64_t n_bytes = 0;
    if (value.isList())
      for (const c10::IValue& element : value.toListRef()) n_bytes += bytes_in(element);
    return n_bytes;
  }

  /// The dtype of the first tensor.
  static std::optional<c10::ScalarType> dtype_in(c10::ArrayRef<c10::IValue> values) {
    for (const c10::IValue& value : values) {
      if (value.isTensor() && value.toTensor().defined()) return value.toTensor().scalar_type();
      if (value.isList())
        if (const auto dtype = dtype_in(value.toListRef())) return dtype;
    }
    return std::nullopt;
  }

  struct Moved {
    int64_t sent = 0, received = 0;
  };

  /// The bytes of a list of tensors, or of a list of such a list, but those of the part of rank `own`.
  static int64_t bytes_of_others(const c10::IValue& parts, int64_t own) {
    if (!parts.isList() || parts.toListRef().empty()) return 0;
    if (parts.toListRef()[0].isList()) return bytes_of_others(parts.toListRef()[0], own);
    return bytes_in(parts) - bytes_in(parts.toListRef()[own]);
  }

  /// The bytes of a tensor that is split along its first dim, but those of part `own`. No sizes: equal parts.
  static int64_t bytes_of_others(int64_t n_bytes, const c10::IValue& sizes, const Members& members) {
    if (!sizes.isIntList() || sizes.toIntVector().empty()) return n_bytes * (members.n() - 1) / members.n();
    const std::vector<int64_t> parts = sizes.toIntVector();
    const int64_t all = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    return all == 0 ? 0 : n_bytes / all * (all - parts[members.own]);
  }

  /// The bytes that this rank sends and receives, from the arguments: the least that a ring moves, for collectives in which all ranks do as much.
  static Moved moved_bytes(std::string_view op, std::string_view kind, c10::ArrayRef<c10::IValue> inputs,
                           const Members& members) {
    const int64_t own = members.own, n_ranks = members.n();
    if (kind == "gather" || kind == "scatter") {  // outputs, inputs, the group, the root
      const bool is_root = inputs[3].toInt() == own, is_of_all = is_root == (kind == "gather");
      const int64_t n_bytes =
          is_root ? bytes_of_others(inputs[kind == "gather" ? 0 : 1], own) : bytes_in(inputs[kind == "gather" ? 1 : 0]);
      return is_of_all ? Moved{0, n_bytes} : Moved{n_bytes, 0};
    }
    if (kind == "alltoall") return {bytes_of_others(inputs[1], own), bytes_of_others(inputs[0], own)};
    if (kind == "alltoall_base")
      return {bytes_of_others(bytes_in(inputs[1]), inputs[4], members),
              bytes_of_others(bytes_in(inputs[0]), inputs[3], members)};
    if (kind == "all_to_all" && inputs[1].isIntList()) {  // a functional one, whose output is not there yet
      const std::vector<int64_t> given = inputs[2].toIntVector(), wanted = inputs[1].toIntVector();
      const int64_t all = std::accumulate(given.begin(), given.end(), int64_t{0}), n_bytes = bytes_in(inputs[0]);
      const int64_t arriving = std::accumulate(wanted.begin(), wanted.end(), int64_t{0});
      return {bytes_of_others(n_bytes, inputs[2], members),
              all == 0 ? 0 : bytes_of_others(n_bytes / all * arriving, inputs[1], members)};
    }
    int64_t whole = 0;  // of the argument that has the parts of all ranks
    for (const c10::IValue& input : inputs) whole = std::max(whole, bytes_in(input));
    if (kind.ends_with("send")) return {whole, 0};
    if (kind.find("recv") != kind.npos) return {0, whole};
    if (op.starts_with("_c10d_functional") && kind.starts_with("all_gather"))
      whole *= n_ranks;  // a functional one has its part alone
    const int64_t times = kind == "allreduce" || kind.starts_with("all_reduce") ? 2 : 1;
    const int64_t n_bytes = kind == "broadcast" ? whole : times * whole * (n_ranks - 1) / n_ranks;
    return {n_bytes, n_bytes};
  }

  static std::unique_ptr<at::ObserverContext> entered(const at::RecordFunction& call) {
    const std::string_view kind = kind_of(call.name());
    if (kind.empty() || Inside::depth() > 0 || *CommScope::current_op() != '\0') return nullptr;
    const CommScope scope(call.name());
    const auto inputs = call.inputs();
    const Members members = members_of(inputs);
    Moved moved;
    if (members.n() > 0 && kind != "barrier") moved = moved_bytes(call.name(), kind, inputs, members);
    const bool has_peer =
        call.name() == std::string_view("c10d::send") || call.name() == std::string_view("c10d::recv_");
    add_collective(std::string(kind).c_str(), members.ranks, dtype_in(inputs), moved.sent, moved.received,
                   has_peer ? inputs[2].toInt() : -1, has_peer ? inputs[3].toInt() : 0);
    return std::make_unique<Inside>();
  }
  static void left(const at::RecordFunction& /*call*/, at::ObserverContext* /*inside*/) {}

  at::CallbackHandle handle_;
};

/// An EventReader of one thread between open() and close() in Python. If this object is destroyed on another thread while it is open, the reader is
/// leaked, because its thread still refers to it.
class Recording {
 public:
  Recording(std::string name, bool has_operators, bool has_details, bool has_plain_collectives)
      : name_(std::move(name)),
        wants_(EventReader::kCommunications | (has_operators ? EventReader::kOperators : 0) |
               (has_details ? EventReader::kDetails : 0)),
        has_plain_collectives_(has_plain_collectives) {}
  ~Recording() {
    if (is_open_ && thread_ != std::this_thread::get_id()) static_cast<void>(seen_.release());
  }
  C10_DISABLE_COPY_AND_ASSIGN(Recording);

  /// Throws: c10::ValueError if it is open.
  void open() {
    TORCH_CHECK_VALUE(!is_open_, "[", name_,
                      "] is open: it records one block at a time. Make another one for a block within it.");
    seen_ = std::make_unique<Seen>(wants_, has_plain_collectives_ ? PlainCollectives::of_thread() : nullptr);
    thread_ = std::this_thread::get_id();
    is_open_ = true;
  }
  /// A second call does nothing. Throws: c10::ValueError on another thread; it stays open then.
  void close() {
    if (!is_open_) return;
    TORCH_CHECK_VALUE(
        thread_ == std::this_thread::get_id(), "[", name_,
        "] is closed on another thread than the one that opened it: it records one thread. Close it on the "
        "thread that opened it.");
    is_open_ = false;
    seen_->reader.stop();
    seen_->plain_collectives.reset();
  }
  /// Returns (reader.*look)(args...); a default value before the first open().
  template <class Result, class... Args>
  Result see(Result (EventReader::*look)(Args...) const, Args... args) const {
    return seen_ ? (seen_->reader.*look)(args...) : Result();
  }

 private:
  struct Seen {
    Seen(int wants, std::shared_ptr<PlainCollectives> plain) : reader(wants), plain_collectives(std::move(plain)) {}
    EventReader reader;
    std::shared_ptr<PlainCollectives> plain_collectives;
  };

  const std::string name_;  // for errors, "profile"
  const int wants_;
  const bool has_plain_collectives_;
  std::unique_ptr<Seen> seen_;
  std::thread::id thread_;
  bool is_open_ = false;
};

/// A getter of Python's EventReader.
template <class Result>
auto seen(Result (EventReader::*look)() const) {
  return [look](const Recording& self) { return self.see(look); };
}
template <class Result>
auto seen(Result (EventReader::*look)(bool) const) {
  return [look](const Recording& self, bool with_composites) { return self.see(look, with_composites); };
}

/// A getter of a field of an OpDescription.
template <class Field>
auto described(Field OpDescription::* field) {
  return [field](const OpEvent& self) { return (*self.description).*field; };
}

/// The readers behind the page of `watch` and the files of a program that hangs.
void bind_live(py::module_& module) {
  py::class_<GroupTraffic>(module, "GroupTraffic")
      .def_readonly("ranks", &GroupTraffic::ranks)
      .def_readonly("n_calls", &GroupTraffic::n_calls)
      .def_readonly("bytes_sent", &GroupTraffic::bytes_sent)
      .def_readonly("bytes_received", &GroupTraffic::bytes_received)
      .def_readonly("seconds", &GroupTraffic::seconds);
  py::class_<PresentWait>(module, "PresentWait")
      .def_readonly("name", &PresentWait::name)
      .def_readonly("op", &PresentWait::op)
      .def_readonly("seconds", &PresentWait::seconds)
      .def_readonly("ranks", &PresentWait::ranks);
  py::class_<TrafficMeter>(module, "TrafficMeter")
      .def(py::init([] { return TrafficMeter(); }))
      .def("read", &TrafficMeter::read)
      .def("waits", &TrafficMeter::waits);
  start_flight_watch_if_asked();
  module.def("dump_folder", [] { return dump_folder().string(); }, "The default folder of files.");
  define(
      module, "dump_flights",
      [](const std::optional<std::string>& folder) {
        return dump_flights(folder ? std::filesystem::path(*folder) : dump_folder(), "asked for");
      },
      py::arg("folder") = py::none(),
      "Writes the last communications of each rank of this process to a file; returns the files' paths.");
}

}  // namespace

void bind_events(py::module_& module) {
  bind_live(module);
  py::class_<CommEvent>(module, "CommEvent",
                        "One communication as one rank saw it; bytes exclude what a rank sends to itself. Times are "
                        "nanoseconds since 1970."
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
      .def_readonly("ranks", &CommEvent::ranks, "The group's.")
      .def_property_readonly("dtype",
                             [](const CommEvent& self) { return self.dtype ? c10::toString(*self.dtype) : ""; })
      .def_readonly("bytes_sent", &CommEvent::bytes_sent)
      .def_readonly("bytes_received", &CommEvent::bytes_received)
      .def_readonly("is_asked_for", &CommEvent::is_asked_for, "False if an operator moved its operands on its own.")
      .def_readonly("is_sent", &CommEvent::is_sent, "False if it was planned only, for tensors on meta.")
      .def_readonly("call", &CommEvent::call, "Its number among the group's; 0 where members may stay away.")
      .def_readonly("peer", &CommEvent::peer,
                    "The index of the other rank in the group, for a message to one rank; or -1.")
      .def_readonly("tag", &CommEvent::tag)
      .def_readonly("layouts", &CommEvent::layouts, "The layouts of the moved tensor, in a profile; or \"\".")
      .def_readonly("source", &CommEvent::source, "The program's line, in a profile; or \"\".")
      .def_readonly("begin_ns", &CommEvent::begin)
      .def_readonly("end_ns", &CommEvent::end, "0 while it is under way.")
      .def_readonly("waited_ns", &CommEvent::waited, "How long this rank's thread waited.")
      .def_readonly("has_failed", &CommEvent::has_failed)
      .def("__repr__", [](const CommEvent& self) {
        return fmt::format("CommEvent({} of {} ranks for {}: {} bytes sent, {} received)", self.collective,
                           self.n_ranks, self.op, self.bytes_sent, self.bytes_received);
      });
  py::class_<OpEvent>(module, "OpRecord",
                      "How one operator was dispatched. Layouts are texts, one per tensor. Times are nanoseconds since "
                      "1970.\n"
                      "\n"
                      ">>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])\n"
                      ">>> (record,) = sw.explain(lambda: x + x)\n"
                      "operator ...\n"
                      ">>> record.op, record.used, record.results, record.bytes_received\n"
                      "('aten::add.Tensor', [...], ['[Shard(0)]'], 0)")
      .def_property_readonly("op", described(&OpDescription::op))
      .def_property_readonly("rule", described(&OpDescription::rule), "The rule's text, or a note that there is none.")
      .def_property_readonly("given", described(&OpDescription::given), "The operands' layouts.")
      .def_property_readonly("used", described(&OpDescription::used), "The layouts under which the operator ran.")
      .def_property_readonly("results", described(&OpDescription::results))
      .def_readonly("begin_ns", &OpEvent::begin)
      .def_readonly("end_ns", &OpEvent::end)
      .def_readonly("n_collectives", &OpEvent::n_collectives)
      .def_readonly("bytes_received", &OpEvent::bytes_received, "By this rank.")
      .def("__repr__", [](const OpEvent& self) { return to_string({self}); });
  module.def(
      "operator_table", [](const std::vector<OpEvent>& operators) { return to_string(operators); },
      py::arg("operators"), "A line per operator.");
  py::class_<Recording>(module, "EventReader",
                        "Records the events of this thread between open() and close(). Errors call it `name`.")
      .def(py::init<std::string, bool, bool, bool>(), py::arg("name"), py::kw_only(), py::arg("operators") = false,
           py::arg("details") = false, py::arg("plain_collectives") = false)
      .def("open", &Recording::open)
      .def("close", &Recording::close)
      .def("collectives", seen(&EventReader::collectives))
      .def("n_collectives", seen(&EventReader::n_collectives))
      .def("communications", seen(&EventReader::communications))
      .def("n_communications", seen(&EventReader::n_communications))
      .def("operators", seen(&EventReader::operators), py::arg("with_composites") = true)
      .def("n_operators", seen(&EventReader::n_operators), py::arg("with_composites") = true);
}

}  // namespace shardwise
