/* A compiler of kernels that compiles nothing, for tests/hbm_driver.rs. STUB_FAIL as in libcuda.c, without
 * counts; with STUB_CUT the CUBIN has lost its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;

/* A file of ELF with one section of code. */
static unsigned char cubin[64 + 16 + 2 * 64];

static R fate(const char *name) {
  const char *at = getenv("STUB_FAIL");
  while (at && *at) {
    char what[64];
    int code = 0;
    if (sscanf(at, "%63[^=]=%d", what, &code) < 2) break;
    if (strcmp(what, name) == 0) return code;
    at = strchr(at, ',');
    if (at) ++at;
  }
  return 0;
}

#define DEFINE(name, parameters, ...) \
  R name parameters {                 \
    R is = fate(#name);               \
    if (is) return is;                \
    __VA_ARGS__;                      \
    return 0;                         \
  }

DEFINE(nvrtcVersion, (int *major, int *minor), *major = 13; *minor = 0)
DEFINE(nvrtcCreateProgram,
       (void **to, const char *source, const char *name, int headers, const char *const *texts,
        const char *const *names),
       *to = malloc(1))
DEFINE(nvrtcCompileProgram, (void *program, int count, const char *const *options))
R nvrtcDestroyProgram(void **program) {
  free(*program);
  *program = 0;
  return 0;
}
static const char log_text[] = "hps.cu(1): error: the stub compiles nothing";
DEFINE(nvrtcGetProgramLogSize, (void *program, size_t *bytes), *bytes = sizeof log_text)
DEFINE(nvrtcGetProgramLog, (void *program, char *to), memcpy(to, log_text, sizeof log_text))
DEFINE(nvrtcGetCUBINSize, (void *program, size_t *bytes), *bytes = sizeof cubin - (getenv("STUB_CUT") ? 64 : 0))
DEFINE(nvrtcGetCUBIN, (void *program, char *to), {
  memcpy(cubin, "\177ELF\2\1", 6);
  cubin[40] = 64 + 16; /* where the section headers begin */
  cubin[58] = 64;      /* bytes of each */
  cubin[60] = 2;       /* how many */
  cubin[80 + 64 + 4] = 1;   /* the second has code, */
  cubin[80 + 64 + 24] = 64; /* here, */
  cubin[80 + 64 + 32] = 16; /* so many bytes */
  memcpy(to, cubin, sizeof cubin - (getenv("STUB_CUT") ? 64 : 0));
})
