/* A driver of CUDA without a GPU, for tests/hbm_driver.rs: memory is the host's, kernels do nothing, and
 * calls fail as the variable STUB_FAIL says:
 *
 *   cuMemAlloc_v2=2      each call of this name returns 2
 *   cuMemAlloc_v2=2@3    the third one does
 *   once=1@20            call 20 of all returns 1
 *   any=719@20           call 20 of all returns 719, and each one after it
 *
 * several of them with commas between. What is not given back when the process ends is said on stderr.
 * With LACKING defined, cuMemcpyAsync is not there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef unsigned long long u64;

static int calls, held;

/* What a call returns before it does anything. */
static R fate(const char *name, int *own) {
  ++*own;
  ++calls;
  const char *at = getenv("STUB_FAIL");
  while (at && *at) {
    char what[64];
    int code = 0, when = 0, read = 0;
    if (sscanf(at, "%63[^=]=%d%n", what, &code, &read) < 2) break;
    at += read;
    if (*at == '@') when = atoi(at + 1);
    at = strchr(at, ',');
    if (at) ++at;
    if (strcmp(what, "once") == 0 && calls == when) return code;
    if (strcmp(what, "any") == 0 && when && calls >= when) return code;
    if (strcmp(what, name) == 0 && (!when || *own == when)) return code;
  }
  return 0;
}

#define DEFINE(name, parameters, ...)  \
  static int name##_calls;             \
  R name parameters {                  \
    R is = fate(#name, &name##_calls); \
    if (is) return is;                 \
    __VA_ARGS__;                       \
    return 0;                          \
  }

__attribute__((destructor)) static void end(void) {
  if (calls && getenv("STUB_COUNT")) printf("@calls %d\n", calls);
  if (held) fprintf(stderr, "stub: %d things were not given back\n", held);
}

R cuGetErrorName(R error, const char **text) {
  *text = error == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == 100 ? "CUDA_ERROR_NO_DEVICE"
          : error == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 719 ? "CUDA_ERROR_LAUNCH_FAILED"
          : error == 999 ? "CUDA_ERROR_UNKNOWN"
                         : "CUDA_ERROR_OF_THE_STUB";
  return 0;
}
R cuGetErrorString(R error, const char **text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : "the stub was told to fail";
  return 0;
}

DEFINE(cuInit, (unsigned flags))
DEFINE(cuDriverGetVersion, (int *to), {
  const char *given = getenv("STUB_VERSION");
  *to = given ? atoi(given) : 13000;
})
DEFINE(cuDeviceGetCount, (int *to), {
  const char *given = getenv("STUB_DEVICES");
  *to = given ? atoi(given) : 1;
})
DEFINE(cuDeviceGet, (int *to, int ordinal), *to = ordinal)
DEFINE(cuDeviceGetName, (char *to, int bytes, int device), {
  snprintf(to, bytes, "a stub");
})
DEFINE(cuDeviceGetAttribute, (int *to, int which, int device), {
  const char *given = getenv("STUB_UNIFIED");
  /* 41: addresses shared with the host; 16: multiprocessors; 75: major number of the capability. */
  *to = which == 41 ? (given ? atoi(given) : 1) : which == 16 ? 2 : which == 75 ? 9 : 0;
})
DEFINE(cuDevicePrimaryCtxRetain, (void **to, int device), {
  *to = (void *)&held;
  ++held;
})
R cuDevicePrimaryCtxRelease_v2(int device) {
  --held;
  return 0;
}
DEFINE(cuCtxSetCurrent, (void *context))

DEFINE(cuStreamCreate, (void **to, unsigned flags), {
  *to = malloc(1);
  ++held;
})
DEFINE(cuStreamSynchronize, (void *stream))
R cuStreamDestroy_v2(void *stream) {
  free(stream);
  --held;
  return 0;
}
DEFINE(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))
DEFINE(cuStreamBeginCapture_v2, (void *stream, int mode))
DEFINE(cuStreamEndCapture, (void *stream, void **graph), {
  *graph = malloc(1);
  ++held;
})
DEFINE(cuEventCreate, (void **to, unsigned flags), {
  *to = malloc(1);
  ++held;
})
DEFINE(cuEventRecord, (void *event, void *stream))
DEFINE(cuEventSynchronize, (void *event))
DEFINE(cuEventElapsedTime_v2, (float *to, void *from, void *till), {
  *to = 1.0f;
})
R cuEventDestroy_v2(void *event) {
  free(event);
  --held;
  return 0;
}
DEFINE(cuGraphInstantiateWithFlags, (void **to, void *graph, u64 flags), {
  *to = malloc(1);
  ++held;
})
DEFINE(cuGraphLaunch, (void *graph, void *stream))
R cuGraphExecDestroy(void *graph) {
  free(graph);
  --held;
  return 0;
}
R cuGraphDestroy(void *graph) {
  free(graph);
  --held;
  return 0;
}

static R take(void **to, size_t bytes) {
  *to = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!*to) return 2;
  ++held;
  return 0;
}
static int cuMemAlloc_v2_calls, cuMemHostAlloc_calls;
R cuMemAlloc_v2(u64 *to, size_t bytes) {
  R is = fate("cuMemAlloc_v2", &cuMemAlloc_v2_calls);
  return is ? is : take((void **)to, bytes);
}
R cuMemHostAlloc(void **to, size_t bytes, unsigned flags) {
  R is = fate("cuMemHostAlloc", &cuMemHostAlloc_calls);
  return is ? is : take(to, bytes);
}
R cuMemFreeHost(void *at) {
  free(at);
  --held;
  return 0;
}
R cuMemFree_v2(u64 at) { return cuMemFreeHost((void *)at); }
DEFINE(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total), {
  const char *given = getenv("STUB_FREE");
  *free_bytes = given ? strtoull(given, 0, 10) : 1ull << 30;
  *total = 1ull << 30;
})
DEFINE(cuMemcpyHtoDAsync_v2, (u64 to, const void *from, size_t bytes, void *stream), {
  memcpy((void *)to, from, bytes);
})
DEFINE(cuMemcpyDtoHAsync_v2, (void *to, u64 from, size_t bytes, void *stream), {
  memcpy(to, (void *)from, bytes);
})
#ifndef LACKING
DEFINE(cuMemcpyAsync, (u64 to, u64 from, size_t bytes, void *stream), {
  memmove((void *)to, (void *)from, bytes);
})
#endif
DEFINE(cuMemsetD8Async, (u64 to, unsigned char byte, size_t bytes, void *stream), {
  memset((void *)to, byte, bytes);
})

DEFINE(cuModuleLoadData, (void **to, const void *image), {
  *to = malloc(1);
  ++held;
})
DEFINE(cuModuleGetFunction, (void **to, void *module, const char *name), {
  *to = module;
})
R cuModuleUnload(void *module) {
  free(module);
  --held;
  return 0;
}
DEFINE(cuLaunchKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, void *stream, void **arguments, void **extra))
