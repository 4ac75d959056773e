// tests/kernels/emulated_cuda/emulated_cuda.cpp: fibers for threads, and the runtime's functions over the CPU's memory.
#include "emulated_cuda.h"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated_cuda {
namespace {

constexpr size_t kStackBytes = 128 << 10;  // the sanitizers' frames are large

struct Fiber {
  jmp_buf context;
  std::unique_ptr<char[]> stack;  // null: it has not begun
  bool is_done;
  bool waits;
  bool for_block;
  unsigned mask;
  uint64_t value;
};

std::vector<Fiber> fibers(1024);
jmp_buf scheduler;
unsigned n_fibers, running;
const std::function<void()>* body_now;

/// Lets the scheduler go on. Returns when it lets this fiber go on.
void yield() {
  if (_setjmp(fibers[running].context) == 0) _longjmp(scheduler, 1);
}

/// A fiber's life: it runs one body after another.
[[noreturn]] void live() {
  for (;; yield()) {
    (*body_now)();
    fibers[running].is_done = true;
  }
}

/// Lets the fiber `running` go on until it yields. The jumps are some ten times as fast as swapcontext(), which asks the kernel for the signal mask.
void resume() {
  Fiber& fiber = fibers[running];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.stack) _longjmp(fiber.context, 1);
  fiber.stack.reset(new char[kStackBytes]);
  ucontext_t beginning;
  getcontext(&beginning);
  beginning.uc_stack = {fiber.stack.get(), 0, kStackBytes};
  makecontext(&beginning, live, 0);
  setcontext(&beginning);
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s (thread %u, %u of block %u, %u)\n", what, threadIdx.x, threadIdx.y,
               blockIdx.x, blockIdx.y);
  std::abort();
}

/// Lets all go on that wait as this fiber does, if none is missing.
bool released() {
  const Fiber& self = fibers[running];
  const unsigned first = self.for_block ? 0 : running / 32 * 32, last = self.for_block ? n_fibers : first + 32;
  const auto is_meant = [&](unsigned i) { return self.for_block || (self.mask >> (i - first) & 1) != 0; };
  for (unsigned i = first; i < last; ++i) {
    if (!is_meant(i)) continue;
    if (!self.for_block && (i >= n_fibers || fibers[i].is_done)) fail("a mask names a thread that is gone");
    if (fibers[i].is_done) continue;
    if (!fibers[i].waits || fibers[i].for_block != self.for_block || fibers[i].mask != self.mask) return false;
  }
  for (unsigned i = first; i < last; ++i)
    if (is_meant(i)) fibers[i].waits = false;
  return true;
}

void wait(bool for_block, unsigned mask) {
  Fiber& self = fibers[running];
  if (!for_block && (mask >> lane() & 1) == 0) fail("a thread is not in its own mask");
  self.waits = true;
  self.for_block = for_block;
  self.mask = mask;
  while (self.waits && !released()) yield();
}

void run_block(bool backwards) {
  for (unsigned i = 0; i < n_fibers; ++i) fibers[i].is_done = fibers[i].waits = false;
  for (unsigned n_left = n_fibers; n_left > 0;) {
    bool moved = false;
    for (unsigned turn = 0; turn < n_fibers; ++turn) {
      running = backwards ? n_fibers - 1 - turn : turn;
      if (fibers[running].is_done) continue;
      threadIdx = {running % blockDim.x, running / blockDim.x, 0};
      const bool waited = fibers[running].waits;
      resume();
      moved |= !waited || !fibers[running].waits || fibers[running].is_done;
      n_left -= fibers[running].is_done;
    }
    if (!moved) fail("threads wait for others that do not come");
  }
}

}  // namespace

unsigned lane() { return running % 32; }

void wait_for(unsigned mask) { wait(false, mask); }
void wait_for_block() { wait(true, 0); }

uint64_t exchange(unsigned mask, uint64_t value, unsigned from) {
  if ((mask >> from & 1) == 0) fail("a value is wanted of a thread that is not in the mask");
  fibers[running].value = value;
  wait_for(mask);
  const uint64_t result = fibers[running / 32 * 32 + from].value;
  wait_for(mask);
  return result;
}

cudaError_t run(dim3 grid, dim3 block, const std::function<void()>& body) {
  n_fibers = block.x * block.y;
  if (n_fibers == 0 || n_fibers > 1024 || grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.x > 0x7fffffff)
    return cudaErrorInvalidConfiguration;
  body_now = &body;
  blockDim = block;
  gridDim = grid;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      run_block((x + y) % 2 == 1);
    }
  return cudaSuccess;
}

}  // namespace emulated_cuda

extern "C" {
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t n) { return *memory = std::malloc(n), cudaSuccess; }
cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemcpy(void* into, const void* from, size_t n, cudaMemcpyKind) {
  if (n > 0) std::memcpy(into, from, n);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* into, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(into, from, n, kind);
}
cudaError_t cudaMemsetAsync(void* into, int value, size_t n, cudaStream_t) {
  return std::memset(into, value, n), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
}
