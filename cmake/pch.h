// cmake/pch.h: the headers of torch that runtime/, ops/, wrappers/ and their tests parse once instead of once per file.
//
// Only what most files include: GCC instantiates anew, in every file, the templates that headers in here ask for. Autograd's
// would cost each file a second.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
