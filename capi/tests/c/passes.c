/* Passes: what they bring, how long it stays, and what they refuse: `passes DIRECTORY`, which is
 * empty. */
#define _DEFAULT_SOURCE

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { DIM = 16, ROWS = 2000 };

/* A program that was compiled with an older header goes on: no struct changes its size. */
static void structs_keep_their_sizes(void) {
  CHECK(sizeof(hps_pass_part) == 40 && sizeof(hps_pass_report) == 64);
  CHECK(sizeof(hps_pass_table_report) == 56);
}

/* A store whose tables "clicks" and "users" have rows of keys 0 to ROWS, none of them in memory. */
static void fill(const char *name) {
  static uint64_t keys[ROWS];
  static float values[ROWS * DIM];
  hps_options *options = small_options();
  hps_descriptor *both[2] = {descriptor_of("clicks", DIM), descriptor_of("users", DIM)};
  hps_store *store;
  uint32_t ids[2];
  for (size_t i = 0; i < ROWS; i++) keys[i] = i;
  OK(hps_open_or_create(below(name), options, (const hps_descriptor *const *)both, 2, ids, &store,
                        &error));
  for (int i = 0; i < 2; i++) {
    OK(hps_put(store, ids[i], keys, ROWS, HPS_WEIGHTS, values, ROWS * DIM, 0, NULL, &error));
    hps_descriptor_free(both[i]);
  }
  OK(hps_checkpoint(store, 1, NULL, 0, NULL, &error));
  OK(hps_close(store, 0, &error));
  hps_store_free(store);
  hps_options_free(options);
}

static hps_pass_part part_of(uint32_t table, const uint64_t *keys, size_t len) {
  hps_pass_part part;
  memset(&part, 0, sizeof part);
  part.table = table;
  part.keys = keys;
  part.keys_len = len;
  return part;
}

/* Begins a pass of keys `first` to `first` + `len`, and waits for it. */
static hps_pass *pass_of(hps_store *store, uint32_t table, uint64_t first, size_t len) {
  static uint64_t keys[ROWS];
  hps_pass_ticket *ticket;
  hps_pass *pass;
  CHECK(len <= ROWS);
  for (size_t i = 0; i < len; i++) keys[i] = first + i;
  hps_pass_part part = part_of(table, keys, len);
  OK(hps_begin_pass(store, &part, 1, &ticket, &error));
  OK(hps_pass_ticket_wait(ticket, HPS_FOREVER, &pass, &error));
  hps_pass_ticket_free(ticket);
  return pass;
}

/* As above, ended: whether it is a block, and how many of its keys were in blocks. */
static int is_block_of(hps_store *store, uint32_t table, uint64_t first, size_t len,
                       uint64_t *hits) {
  hps_pass_table_report of_table;
  hps_pass *pass = pass_of(store, table, first, len);
  OK(hps_pass_end(pass, NULL, &error));
  OK(hps_pass_read(pass, NULL, &of_table, 1, NULL, &error));
  hps_pass_free(pass);
  *hits = of_table.hits;
  return of_table.is_block;
}

static uint64_t table_counter(hps_store *store, uint32_t table, const char *name) {
  hps_stats *stats;
  uint64_t value;
  OK(hps_stats_read(store, &stats, &error));
  OK(hps_stats_get_table(stats, table, name, &value, &error));
  hps_stats_free(stats);
  return value;
}

/* Whether a pull of these keys reads. */
static int reads(hps_store *store, uint32_t table, uint64_t first, size_t len) {
  static uint64_t keys[ROWS];
  static float out[ROWS * DIM];
  uint64_t before = counter(store, "read_bytes");
  hps_lease *lease;
  for (size_t i = 0; i < len; i++) keys[i] = first + i;
  OK(hps_pull(store, table, keys, len, out, len * DIM, &lease, &error));
  hps_lease_free(lease);
  return counter(store, "read_bytes") > before;
}

/* Part 2 of the pass has rows of "clicks": those of the keys 9 and -1. */
static void rows_are_read_and_put(hps_store *store, hps_pass *pass, uint32_t clicks,
                                  size_t row_f32s) {
  float weights[2 * DIM], values[DIM], found[DIM];
  float *rows = malloc(2 * row_f32s * sizeof *rows);
  uint64_t last = UINT64_MAX;
  hps_lease *lease;
  hps_put_report report;
  CHECK(rows != NULL);
  OK(hps_pass_read_weights(pass, 2, 0, weights, 2 * DIM, &error));
  OK(hps_pass_read_rows(pass, 2, 0, rows, 2 * row_f32s, &error));
  CHECK(memcmp(weights, rows, sizeof values) == 0 && weights[0] == 0);
  CHECK(memcmp(weights + DIM, rows + row_f32s, sizeof values) == 0);
  for (size_t i = 0; i < DIM; i++) values[i] = 3.5f;
  OK(hps_pass_put(pass, 2, 1, HPS_WEIGHTS, values, DIM, 0, &report, &error));
  CHECK(report.rows == 1 && report.non_finite == 0);
  OK(hps_pull(store, clicks, &last, 1, found, DIM, &lease, &error));
  CHECK(memcmp(found, values, sizeof found) == 0);
  hps_lease_free(lease);
  OK(hps_pass_put(pass, 2, 0, HPS_ROWS, rows, 2 * row_f32s, HPS_VERBATIM, NULL, &error));
  OK(hps_pass_read_weights(pass, 2, 1, found, DIM, &error));
  CHECK(memcmp(found, weights + DIM, sizeof found) == 0);
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_pass_read_weights(pass, 3, 0, found, DIM, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_pass_read_weights(pass, 2, 2, found, DIM, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length", hps_pass_read_weights(pass, 2, 0, found, 3, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other",
        hps_pass_put(pass, 2, 1, HPS_WEIGHTS, weights, 2 * DIM, 0, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_pass_put(pass, 2, 1, 77, weights, DIM, 0, NULL, &error));
  free(rows);
}

static void rows_stay_while_their_pass_lasts(void) {
  hps_options *options = small_options();
  hps_store *store;
  hps_table_info info;
  hps_pass_report report, ended;
  hps_pass_table_report tables[3];
  hps_pass_ticket *ticket;
  hps_pass *pass, *another = (hps_pass *)(uintptr_t)1;
  uint32_t clicks, users;
  uint64_t some[3] = {1, 2, 10 * ROWS};
  uint32_t ints[4] = {5, 6, 7, 4000000000u};
  int64_t longs[2] = {9, -1};
  size_t count = 9;
  int32_t ready = 0;
  fill("bring");
  OK(hps_options_set_policy_cached(options, 0, 0.5, 0, &error));
  OK(hps_open(below("bring"), options, &store, &error));
  OK(hps_table(store, "clicks", &clicks, &error));
  OK(hps_table(store, "users", &users, &error));
  OK(hps_describe_table(store, clicks, &info, &error));

  FILE *file = fopen(below("ints"), "wb");
  CHECK(file != NULL && fwrite(ints, sizeof ints, 1, file) == 1 && fclose(file) == 0);
  file = fopen(below("longs"), "wb");
  CHECK(file != NULL && fwrite(longs, sizeof longs, 1, file) == 1 && fclose(file) == 0);
  hps_pass_part parts[3] = {part_of(clicks, some, 3), part_of(users, NULL, 0),
                            part_of(clicks, NULL, 0)};
  parts[1].path = below("ints");
  parts[1].key_type = HPS_KEYS_U32;
  parts[2].path = below("longs");
  OK(hps_begin_pass(store, parts, 3, &ticket, &error));
  memset(some, 0, sizeof some); /* they were copied */
  while (!ready) OK(hps_pass_ticket_poll(ticket, &ready, &error));
  OK(hps_pass_ticket_wait(ticket, 0, &pass, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_pass_ticket_wait(ticket, 0, &another, &error));
  CHECK(another == NULL && counter(store, "leases") == 1);
  hps_pass_ticket_free(ticket);
  hps_pass_free(pass);

  OK(hps_begin_pass(store, parts, 3, &ticket, &error));
  hps_pass_ticket_free(ticket); /* given up */
  while (counter(store, "leases") > 0) continue;
  some[0] = 1;
  parts[0].keys_len = 1;
  OK(hps_begin_pass(store, parts, 3, &ticket, &error));
  OK(hps_pass_ticket_wait(ticket, HPS_FOREVER, &pass, &error));
  hps_pass_ticket_free(ticket);
  OK(hps_pass_read(pass, &report, tables, 3, &count, &error));
  CHECK(count == 3 && report.keys == 7 && report.known == 5 && report.seconds >= 0);
  CHECK(report.reserved[0] == 0 && report.reserved[1] == 0);
  CHECK(tables[0].table == clicks && tables[0].keys == 1 && tables[0].known == 1);
  CHECK(tables[1].table == users && tables[1].keys == 4 && tables[1].known == 3);
  CHECK(tables[2].table == clicks && tables[2].keys == 2 && tables[2].known == 1);
  CHECK(!tables[0].is_block && !tables[1].is_block && tables[1].reserved == 0);
  /* No block has them. */
  CHECK(report.hits == 0 && report.hit_rate == 0.0 && tables[1].hit_rate == 0.0);
  CHECK(counter(store, "pinned_rows") >= 7 && !reads(store, users, 5, 3));
  rows_are_read_and_put(store, pass, clicks, info.row_f32s);
  OK(hps_pass_end(pass, NULL, &error));
  float one[16];
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_pass_read_rows(pass, 2, 0, one, 1, &error));
  hps_pass_free(pass);

  pass = pass_of(store, clicks, 100, 900);
  OK(hps_pass_read(pass, &report, NULL, 0, NULL, &error));
  CHECK(report.bytes == 900 * 4 * info.row_f32s && report.known == 900);
  CHECK(!reads(store, clicks, 100, 900) && reads(store, clicks, 1500, 10));
  OK(hps_pass_end(pass, &ended, &error));
  CHECK(memcmp(&report, &ended, sizeof report) == 0);
  CHECK(reads(store, clicks, 100, 900));
  OK(hps_pass_end(pass, &ended, &error));
  CHECK(memcmp(&report, &ended, sizeof report) == 0);
  OK(hps_pass_read(pass, &report, tables, 1, &count, &error));
  CHECK(count == 1);
  hps_pass_free(pass);
  OK(hps_close(store, 1, &error));
  hps_store_free(store);
  hps_options_free(options);
}

static void passes_become_blocks(void) {
  hps_options *options = small_options();
  hps_table_options *cached = hps_table_options_new();
  hps_store *store;
  uint32_t clicks;
  uint64_t hits;
  fill("blocks");
  OK(hps_table_options_set_policy_cached(cached, 1, 0.5, 1, &error));
  OK(hps_options_set_table(options, "clicks", cached, &error));
  OK(hps_open(below("blocks"), options, &store, &error));
  OK(hps_table(store, "clicks", &clicks, &error));
  CHECK(is_block_of(store, clicks, 0, 100, &hits) == 1 && hits == 0);
  CHECK(is_block_of(store, clicks, 50, 100, &hits) == 0 && hits == 50); /* the rate is reached */
  CHECK(is_block_of(store, clicks, 51, 100, &hits) == 1 && hits == 49);
  CHECK(table_counter(store, clicks, "blocks") == 1);
  CHECK(table_counter(store, clicks, "block_evictions") == 1);
  CHECK(is_block_of(store, clicks, 500, 100, &hits) == 0 && hits == 0); /* one was enough */
  OK(hps_unfreeze(store, clicks, &error));
  CHECK(table_counter(store, clicks, "block_evictions") == 0);
  CHECK(is_block_of(store, clicks, 500, 100, &hits) == 1);
  CHECK(!reads(store, clicks, 500, 100) && reads(store, clicks, 51, 100));
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable", hps_unfreeze(store, 99, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_unfreeze(NULL, clicks, &error));
  OK(hps_close(store, 0, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_unfreeze(store, clicks, &error));
  hps_store_free(store);

  /* The open checks the range. */
  OK(hps_table_options_set_policy_cached(cached, 1, 1.5, 1, &error));
  OK(hps_options_set_table(options, "clicks", cached, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_open(below("blocks"), options, &store, &error));
  OK(hps_table_options_set_policy(cached, HPS_POLICY_FIFO, &error));
  OK(hps_options_set_table(options, "clicks", cached, &error));
  OK(hps_options_set_policy_cached(options, 1, (double)NAN, 1, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_open(below("blocks"), options, &store, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_set_policy_cached(NULL, 1, 0.5, 1, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_table_options_set_policy_cached(NULL, 1, 0.5, 1, &error));

  /* Staged: no pull reads. */
  OK(hps_options_set_policy(options, HPS_POLICY_STAGED, &error));
  OK(hps_table_options_set_policy(cached, HPS_POLICY_STAGED, &error));
  OK(hps_options_set_table(options, "clicks", cached, &error));
  OK(hps_open(below("blocks"), options, &store, &error));
  CHECK(counter(store, "resident_rows") == 2 * ROWS && !reads(store, clicks, 0, ROWS));
  OK(hps_close(store, 0, &error));
  hps_store_free(store);
  hps_table_options_free(cached);
  hps_options_free(options);
}

static void what_has_no_room_is_told_or_waits(hps_store *store, uint32_t clicks) {
  enum { MANY = 400000 };
  uint64_t *keys = malloc(MANY * sizeof *keys), needed = 0;
  hps_pass_ticket *ticket;
  hps_pass *held = NULL, *pass, *small = pass_of(store, clicks, 0, 1);
  hps_error *error;
  int32_t ready = 9;
  size_t most = MANY;
  CHECK(keys != NULL);
  for (size_t i = 0; i < MANY; i++) keys[i] = i;
  hps_pass_part part = part_of(clicks, keys, MANY);
  CHECK(hps_begin_pass(store, &part, 1, &ticket, &error) == HPS_OVER_BUDGET && ticket == NULL);
  CHECK(hps_error_field_u64(error, "needed_bytes", &needed) == 1 && needed > 4 << 20);
  hps_error_free(error);
  while (held == NULL) {
    part.keys_len = most -= most / 8;
    if (hps_begin_pass(store, &part, 1, &ticket, NULL) != HPS_OK) continue;
    hps_pass_ticket_wait(ticket, HPS_FOREVER, &held, NULL);
    hps_pass_ticket_free(ticket);
  }
  part.keys += most;
  OK(hps_begin_pass(store, &part, 1, &ticket, &error));
  CHECK(hps_pass_ticket_wait(ticket, 20000, &pass, &error) == HPS_DEADLINE && pass == NULL);
  hps_error_free(error);
  OK(hps_pass_ticket_poll(ticket, &ready, &error));
  CHECK(ready == 0);
  FAILS(HPS_OVER_BUDGET, NULL, hps_pass_ticket_wait(ticket, HPS_FOREVER, &pass, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_pass_ticket_wait(ticket, 0, &pass, &error));
  hps_pass_ticket_free(ticket);
  OK(hps_begin_pass(store, &part, 1, &ticket, &error));
  OK(hps_pass_end(held, NULL, &error));
  OK(hps_pass_ticket_wait(ticket, HPS_FOREVER, &pass, &error));
  hps_pass_ticket_free(ticket);
  hps_pass_free(pass);
  hps_pass_free(held);
  hps_pass_free(small);
  free(keys);
}

static void what_is_wrong_is_refused(hps_store *store, uint32_t clicks) {
  uint64_t keys[2] = {1, 2};
  hps_pass_ticket *ticket = (hps_pass_ticket *)(uintptr_t)1;
  hps_pass *pass;
  int32_t ready;
  hps_pass_part part = part_of(clicks, keys, 2);
  FAILS(HPS_INVALID_ARGUMENT, NULL, hps_begin_pass(store, NULL, 0, &ticket, &error));
  CHECK(ticket == NULL);
  FAILS(HPS_NULL_POINTER, NULL, hps_begin_pass(store, NULL, 1, &ticket, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_begin_pass(NULL, &part, 1, &ticket, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_begin_pass(store, &part, 1, NULL, &error));
  part.keys = NULL;
  FAILS(HPS_NULL_POINTER, NULL, hps_begin_pass(store, &part, 1, &ticket, &error));
  part.keys = keys;
  part.reserved = 1;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_begin_pass(store, &part, 1, &ticket, &error));
  part.reserved = 0;
  part.key_type = 2;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_begin_pass(store, &part, 1, &ticket, &error));
  part.key_type = 0;
  part.path = below("longs");
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_begin_pass(store, &part, 1, &ticket, &error));
  part.keys_len = 0;
  part.path = below("nothing");
  FAILS(HPS_IO, NULL, hps_begin_pass(store, &part, 1, &ticket, &error));
  FILE *file = fopen(below("cut"), "wb");
  CHECK(file != NULL && fwrite(keys, 12, 1, file) == 1 && fclose(file) == 0);
  part.path = below("cut");
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_begin_pass(store, &part, 1, &ticket, &error));
  part = part_of(99, keys, 2);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable", hps_begin_pass(store, &part, 1, &ticket, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_ticket_poll(NULL, &ready, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_ticket_wait(NULL, 0, &pass, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_read(NULL, NULL, NULL, 0, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_end(NULL, NULL, &error));
  float row[16];
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_read_weights(NULL, 0, 0, row, 1, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_read_rows(NULL, 0, 0, row, 1, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_put(NULL, 0, 0, HPS_ROWS, row, 1, 0, NULL, &error));
  pass = pass_of(store, clicks, 0, 2);
  FAILS(HPS_NULL_POINTER, NULL, hps_pass_read(pass, NULL, NULL, 1, NULL, &error));
  hps_pass_free(pass);
  hps_pass_free(NULL);
  hps_pass_ticket_free(NULL);
}

/* A child does nothing to a pass of its parent, and waits for nothing. */
static void nothing_of_it_works_in_a_child(hps_store *store, uint32_t clicks) {
  uint64_t key = 1;
  hps_pass_part part = part_of(clicks, &key, 1);
  hps_pass *pass = pass_of(store, clicks, 0, 50), *other;
  hps_pass_ticket *ticket;
  int32_t ready;
  int status;
  OK(hps_begin_pass(store, &part, 1, &ticket, &error));
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    hps_pass_ticket *never;
    alarm(20);
    FAILS(HPS_FORKED, NULL, hps_begin_pass(store, &part, 1, &never, &error));
    FAILS(HPS_FORKED, NULL, hps_pass_ticket_poll(ticket, &ready, &error));
    FAILS(HPS_FORKED, NULL, hps_pass_ticket_wait(ticket, HPS_FOREVER, &other, &error));
    FAILS(HPS_FORKED, NULL, hps_pass_read(pass, NULL, NULL, 0, NULL, &error));
    FAILS(HPS_FORKED, NULL, hps_pass_end(pass, NULL, &error));
    float row[16];
    FAILS(HPS_FORKED, NULL, hps_pass_read_weights(pass, 0, 0, row, 1, &error));
    FAILS(HPS_FORKED, NULL, hps_pass_put(pass, 0, 0, HPS_ROWS, row, 1, 0, NULL, &error));
    FAILS(HPS_FORKED, NULL, hps_unfreeze(store, clicks, &error));
    hps_pass_free(pass);
    hps_pass_ticket_free(ticket);
    /* What the child leaves to its parent is no leak: nobody is to look for one at its exit. */
    raise(SIGKILL);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(counter(store, "pinned_rows") == 50);
  OK(hps_pass_ticket_wait(ticket, HPS_FOREVER, &other, &error));
  hps_pass_ticket_free(ticket);
  hps_pass_free(other);
  hps_pass_free(pass);
  CHECK(counter(store, "leases") == 0 && counter(store, "pinned_rows") == 0);
}

static void a_pass_outlives_its_store(hps_store *store, uint32_t clicks, const char *directory) {
  uint64_t key = 1;
  hps_pass_part part = part_of(clicks, &key, 1);
  hps_pass *pass = pass_of(store, clicks, 0, 50), *late;
  hps_pass_report report;
  hps_pass_ticket *ticket, *never;
  hps_store *again;
  OK(hps_begin_pass(store, &part, 1, &ticket, &error));
  OK(hps_close(store, 1, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_begin_pass(store, &part, 1, &never, &error));
  hps_store_free(store);
  FAILS(HPS_LOCKED, NULL, hps_open(directory, NULL, &again, &error));
  /* One that came before the close gives its pass, another is an error: no crash. */
  int32_t code = hps_pass_ticket_wait(ticket, HPS_FOREVER, &late, NULL);
  CHECK(code == HPS_OK || code == HPS_INVALID_ARGUMENT);
  hps_pass_free(late);
  hps_pass_ticket_free(ticket);
  OK(hps_pass_end(pass, &report, &error));
  CHECK(report.keys == 50);
  hps_pass_free(pass);
  OK(hps_open(directory, NULL, &again, &error));
  OK(hps_close(again, 0, &error));
  hps_store_free(again);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  structs_keep_their_sizes();
  rows_stay_while_their_pass_lasts();
  passes_become_blocks();

  hps_options *options = small_options();
  hps_store *store;
  uint32_t clicks;
  char directory[4096];
  snprintf(directory, sizeof directory, "%s", below("others"));
  fill("others");
  OK(hps_open(directory, options, &store, &error));
  hps_options_free(options);
  OK(hps_table(store, "clicks", &clicks, &error));
  what_is_wrong_is_refused(store, clicks);
  nothing_of_it_works_in_a_child(store, clicks);
  what_has_no_room_is_told_or_waits(store, clicks);
  a_pass_outlives_its_store(store, clicks, directory);
  puts("all passes ended");
  return 0;
}
