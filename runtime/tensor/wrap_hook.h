// runtime/tensor/wrap_hook.h: whether distributed tensors are given a class of another language.
#pragma once

namespace shardwise {

/// True once set_wrap_hook() was called: the program is one of Python.
bool has_wrap_hook();

}  // namespace shardwise
