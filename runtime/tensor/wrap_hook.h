// runtime/tensor/wrap_hook.h: whether distributed tensors get a class of another language.
#pragma once

namespace shardwise {

/// True once set_wrap_hook() was called, that is, in a Python program.
bool has_wrap_hook();

}  // namespace shardwise
