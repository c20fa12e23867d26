// All kernels as host code, and those with planted mistakes.
#include "cuda_emu.hpp"
#include "../common.cu"
#include "../index.cu"
#include "../rows.cu"
#include "../group.cu"
#include "../long_runs.cu"
#include "../update.cu"
#include "planted.cu"

// A linker leaves out what nobody names: schedule.cpp does.
void emu::link_kernels() {}
