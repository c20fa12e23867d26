// All kernels as host code, and the one call by which Rust launches them.
#include "cuda_emu.hpp"
#include "../common.cu"
#include "../index.cu"
#include "../rows.cu"
#include "../group.cu"
#include "../long_runs.cu"
#include "../update.cu"

// Runs a kernel to its end. 0, or 1 with what went wrong in `error`.
extern "C" int hps_emu_launch(const char* name, unsigned grid, unsigned block, void* args,
                              unsigned long long seed, unsigned preempt, char* error,
                              unsigned long long error_bytes) {
  void* list[] = {args};
  std::string what = emu::launch(name, {grid, 1, 1}, {block, 1, 1}, list, seed, preempt);
  if (what.empty()) return 0;
  std::snprintf(error, error_bytes, "%s", what.c_str());
  return 1;
}
