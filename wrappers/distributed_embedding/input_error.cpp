#include "wrappers/distributed_embedding/input_error.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/messages.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwise {
namespace {

using Kind = InputError::Kind;

std::string text_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

at::Tensor bytes_of(const std::string& text, c10::Device device) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

}  // namespace

InputError InputError::current() {
  try {
    throw;
  } catch (const c10::IndexError& error) {
    return {Kind::kIndex, text_of(error)};
  } catch (const c10::TypeError& error) {
    return {Kind::kType, text_of(error)};
  } catch (const c10::ValueError& error) {
    return {Kind::kValue, text_of(error)};
  } catch (const c10::NotImplementedError& error) {
    return {Kind::kNotImplemented, text_of(error)};
  } catch (const std::exception& error) {
    return {Kind::kRuntime, text_of(error)};
  }
}

void InputError::raise() const {
  TORCH_CHECK_INDEX(kind != Kind::kIndex, text);
  TORCH_CHECK_TYPE(kind != Kind::kType, text);
  TORCH_CHECK_VALUE(kind != Kind::kValue, text);
  TORCH_CHECK_NOT_IMPLEMENTED(kind != Kind::kNotImplemented, text);
  TORCH_CHECK(false, text);
}

void raise_first(const DeviceMesh& mesh, const InputError& own, const std::vector<InputError::Notice>& notices) {
  if (std::ranges::all_of(notices, [](const auto& notice) { return notice.kind == Kind::kNone; })) return;
  const Group& group = *mesh.group();
  const c10::Device device(mesh.device_type());
  std::vector<Message> sends, receives;
  std::vector<at::Tensor> texts(notices.size());
  for (size_t i = 0; i < notices.size(); ++i) {
    if (static_cast<int64_t>(i) == group.index) continue;
    if (own.kind != Kind::kNone && !own.text.empty()) sends.push_back({group.ranks[i], bytes_of(own.text, device)});
    if (notices[i].kind != Kind::kNone && notices[i].length > 0) {
      texts[i] = at::empty({notices[i].length}, at::TensorOptions().dtype(at::kByte).device(device));
      receives.push_back({group.ranks[i], texts[i]});
    }
  }
  exchange(group, device, std::move(sends), std::move(receives))->wait();
  const size_t first = static_cast<size_t>(
      std::ranges::find_if(notices, [](const auto& notice) { return notice.kind != Kind::kNone; }) - notices.begin());
  if (static_cast<int64_t>(first) == group.index) own.raise();
  const at::Tensor bytes = texts[first].defined() ? texts[first].cpu() : at::empty({0}, at::kByte);
  const std::string text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
  InputError{notices[first].kind, fmt::format("{} (on rank {})", text, group.ranks[first])}.raise();
}

void raise_together(const DeviceMesh& mesh, const InputError& own) {
  const auto all = all_gather_numbers(*mesh.group(), {static_cast<int64_t>(own.kind), own.notice().length});
  std::vector<InputError::Notice> notices;
  for (const auto& numbers : all) notices.push_back({static_cast<Kind>(numbers[0]), numbers[1]});
  raise_first(mesh, own, notices);
}

}  // namespace shardwise
