/* What the test programs share: checks that say where they failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hps.h"

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);     \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

/* A call that has to work. `error` is the variable that its last argument points to. */
#define OK(call)                                                             \
  do {                                                                       \
    hps_error *error = (hps_error *)(uintptr_t)1;                            \
    int32_t code = call;                                                     \
    if (code != HPS_OK) {                                                    \
      fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call,      \
              (int)code, hps_error_message(error));                          \
      exit(1);                                                               \
    }                                                                        \
    CHECK(error == NULL);                                                    \
  } while (0)

/* A call that has to fail with a code; of HPS_INVALID_ARGUMENT also with a kind, NULL for any. */
#define FAILS(wanted, kind, call)                                            \
  do {                                                                       \
    hps_error *error = (hps_error *)(uintptr_t)1;                            \
    int32_t code = call;                                                     \
    check_failure(__FILE__, __LINE__, #call, code, error, wanted, kind);     \
    hps_error_free(error);                                                   \
  } while (0)

static inline void check_failure(const char *file, int line, const char *call, int32_t code,
                                 const hps_error *error, int32_t wanted, const char *kind) {
  if (code == HPS_OK) {
    fprintf(stderr, "%s:%d: %s: worked, wanted code %d\n", file, line, call, (int)wanted);
    exit(1);
  }
  if (code != wanted || hps_error_code(error) != code || hps_error_message(error)[0] == '\0' ||
      (kind != NULL && strcmp(hps_error_kind(error), kind) != 0)) {
    fprintf(stderr, "%s:%d: %s: code %d, wanted %d %s; %s: %s\n", file, line, call, (int)code,
            (int)wanted, kind == NULL ? "" : kind, hps_error_kind(error), hps_error_message(error));
    exit(1);
  }
}

/* The directory that the program was given. */
static const char *root;

static inline const char *below(const char *name) {
  static char paths[8][4096];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static inline hps_options *small_options(void) {
  hps_options *options = hps_options_new();
  CHECK(options != NULL);
  OK(hps_options_set_cache_bytes(options, 4 << 20, &error));
  OK(hps_options_set_threads(options, 2, &error));
  OK(hps_options_set_shards(options, 2, &error));
  /* Valgrind knows little of io_uring. */
  OK(hps_options_set_io(options, HPS_IO_PREAD, &error));
  return options;
}

static inline hps_descriptor *descriptor_of(const char *name, size_t dim) {
  hps_descriptor *descriptor;
  OK(hps_descriptor_new(name, dim, &descriptor, &error));
  return descriptor;
}

static inline uint64_t counter(hps_store *store, const char *name) {
  hps_stats *stats;
  uint64_t value;
  OK(hps_stats_read(store, &stats, &error));
  OK(hps_stats_get(stats, name, &value, &error));
  hps_stats_free(stats);
  return value;
}

#endif
