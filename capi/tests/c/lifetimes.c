/* What becomes of handles when their store is closed, freed, or left behind in a child; and the
 * log: `lifetimes DIRECTORY`, which is empty. */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { DIM = 4 };

/* Lines of the log, and what was wrong with them. */
struct heard {
  int lines, opens, wrong;
};

static void hear(int32_t level, const char *target, const char *message, void *userdata) {
  struct heard *heard = userdata;
  heard->lines++;
  heard->opens += strstr(message, "the store is open") != NULL;
  heard->wrong += level < HPS_LOG_ERROR || level > HPS_LOG_INFO || strncmp(target, "hps", 3) != 0;
  /* Not from here. */
  heard->wrong += hps_set_log(NULL, NULL, 0, NULL) != HPS_INVALID_ARGUMENT;
}

static void the_log_is_heard(void) {
  struct heard heard = {0, 0, 0};
  hps_options *options = small_options();
  OK(hps_options_set_inline(options, 1, &error));
  hps_store *store;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_set_log(hear, &heard, 0, &error));
  OK(hps_set_log(hear, &heard, HPS_LOG_INFO, &error));
  OK(hps_create(below("logged"), options, &store, &error));
  CHECK(heard.opens == 1 && heard.wrong == 0);
  OK(hps_set_log(NULL, NULL, 0, &error));
  int before = heard.lines;
  OK(hps_checkpoint(store, 1, NULL, 0, NULL, &error));
  CHECK(heard.lines == before);
  OK(hps_set_log(hear, &heard, HPS_LOG_ERROR, &error));
  OK(hps_checkpoint(store, 2, NULL, 0, NULL, &error));
  CHECK(heard.lines == before);
  OK(hps_set_log(hear, &heard, HPS_LOG_INFO, &error));
  OK(hps_checkpoint(store, 3, NULL, 0, NULL, &error));
  CHECK(heard.lines > before && heard.wrong == 0);
  OK(hps_set_log(NULL, NULL, 0, &error));
  hps_store_free(store);
  hps_options_free(options);
}

static hps_store *store_with_rows(const char *name, uint32_t *table) {
  hps_options *options = small_options();
  hps_descriptor *clicks = descriptor_of("clicks", DIM);
  hps_store *store;
  uint64_t keys[2] = {1, 2};
  float ones[2 * DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
  OK(hps_create(below(name), options, &store, &error));
  OK(hps_create_table(store, clicks, table, &error));
  OK(hps_put(store, *table, keys, 2, HPS_WEIGHTS, ones, 2 * DIM, 0, NULL, &error));
  OK(hps_checkpoint(store, 1, NULL, 0, NULL, &error));
  hps_descriptor_free(clicks);
  hps_options_free(options);
  return store;
}

/* Everything that a store gives. */
struct given {
  hps_lease *lease;
  hps_ticket *ticket;
  hps_checkpoint_ticket *checkpoint;
  hps_row_iter *rows;
  hps_hold *hold;
};

static struct given take_all(hps_store *store, uint32_t table) {
  struct given given;
  uint64_t keys[2] = {1, 2};
  float weights[2 * DIM];
  OK(hps_pull(store, table, keys, 2, weights, 2 * DIM, &given.lease, &error));
  OK(hps_prefetch(store, table, keys, 2, &given.ticket, &error));
  OK(hps_rows(store, 1, &given.rows, &error));
  OK(hps_hold_checkpoint(store, 1, &given.hold, &error));
  OK(hps_checkpoint_begin(store, 2, NULL, 0, &given.checkpoint, &error));
  return given;
}

static void free_all(struct given given) {
  hps_lease_free(given.lease);
  hps_ticket_free(given.ticket);
  hps_checkpoint_ticket_free(given.checkpoint);
  hps_row_iter_free(given.rows);
  hps_hold_free(given.hold);
}

static void use_all_of_a_closed_store(struct given given) {
  float out[2 * DIM];
  uint64_t keys[2];
  size_t count = 0;
  uint32_t table;
  hps_lease *lease;
  /* Rows of a lease are as they were. */
  OK(hps_lease_read(given.lease, out, 2 * DIM, &error));
  for (int i = 0; i < 2 * DIM; i++) CHECK(out[i] == 1.0f);
  OK(hps_checkpoint_ticket_wait(given.checkpoint, HPS_FOREVER, NULL, &error));
  float row[2 * DIM];
  OK(hps_row_iter_next(given.rows, keys, 1, row, 2 * DIM, NULL, &table, &count, &error));
  CHECK(count == 1 && row[0] == 1.0f);
  /* A prefetch that came before the close gives its lease, another is an error: no crash. */
  int32_t code = hps_ticket_wait(given.ticket, HPS_FOREVER, &lease, NULL);
  CHECK(code == HPS_OK || code == HPS_INVALID_ARGUMENT);
  CHECK((code == HPS_OK) == (lease != NULL));
  hps_lease_free(lease);
}

static void handles_outlive_their_store(void) {
  uint32_t table, of_other;
  uint64_t key = 1;
  float weights[2 * DIM] = {0};
  hps_lease *lease;
  hps_stats *stats;
  hps_store *store = store_with_rows("outlived", &table);
  hps_store *other = store_with_rows("other", &of_other);
  struct given given = take_all(store, table);
  FAILS(HPS_INVALID_ARGUMENT, "ForeignLease",
        hps_push_gradients(other, given.lease, weights, 2 * DIM, 0.1f, NULL, &error));
  OK(hps_close(store, 0, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed",
        hps_push_gradients(store, given.lease, weights, 2 * DIM, 0.1f, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed",
        hps_pull(store, table, &key, 1, weights, DIM, &lease, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_checkpoint(store, 9, NULL, 0, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_rollback(store, 1, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_stats_read(store, &stats, &error));
  CHECK(stats == NULL);
  hps_store_free(store);
  FAILS(HPS_INVALID_ARGUMENT, "ForeignLease",
        hps_push_gradients(other, given.lease, weights, 2 * DIM, 0.1f, NULL, &error));
  /* They keep the directory, and give it back. */
  FAILS(HPS_LOCKED, NULL, hps_open(below("outlived"), NULL, &store, &error));
  use_all_of_a_closed_store(given);
  free_all(given);
  OK(hps_open(below("outlived"), NULL, &store, &error));
  OK(hps_close(store, 0, &error));
  hps_store_free(store);

  /* As by a crash: freed and not closed. */
  struct given of_freed = take_all(other, of_other);
  OK(hps_checkpoint_ticket_wait(of_freed.checkpoint, HPS_FOREVER, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other",
        hps_checkpoint_ticket_wait(of_freed.checkpoint, 0, NULL, &error));
  hps_store_free(other);
  free_all(of_freed);
}

static void nothing_of_it_works_in_a_child(void) {
  uint32_t table;
  hps_store *store = store_with_rows("forked", &table);
  struct given given = take_all(store, table);
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    uint64_t key = 1;
    float out[2 * DIM + 1];
    size_t count;
    int32_t flag;
    hps_lease *lease;
    FAILS(HPS_FORKED, NULL, hps_pull(store, table, &key, 1, out, DIM, &lease, &error));
    FAILS(HPS_FORKED, NULL, hps_close(store, 1, &error));
    FAILS(HPS_FORKED, NULL, hps_rollback(store, 1, &error));
    FAILS(HPS_FORKED, NULL, hps_has_changes(store, &flag, &error));
    FAILS(HPS_FORKED, NULL, hps_ticket_poll(given.ticket, &flag, &error));
    FAILS(HPS_FORKED, NULL, hps_ticket_wait(given.ticket, HPS_FOREVER, &lease, &error));
    FAILS(HPS_FORKED, NULL, hps_lease_read(given.lease, out, 2 * DIM, &error));
    FAILS(HPS_FORKED, NULL, hps_checkpoint_ticket_wait(given.checkpoint, 0, NULL, &error));
    FAILS(HPS_FORKED, NULL,
          hps_row_iter_next(given.rows, &key, 1, out, 2 * DIM, NULL, &table, &count, &error));
    free_all(given);
    hps_store_free(store);
    /* What the child leaves to its parent is no leak: nobody is to look for one at its exit. */
    raise(SIGKILL);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  OK(hps_checkpoint_ticket_wait(given.checkpoint, HPS_FOREVER, NULL, &error));
  free_all(given);
  OK(hps_close(store, 0, &error));
  hps_store_free(store);
}

static void *wait_for_three_seconds(void *ticket) {
  hps_lease *lease;
  FAILS(HPS_DEADLINE, NULL, hps_ticket_wait(ticket, 3000000, &lease, &error));
  return NULL;
}

/* The thread that waits has the lock of the ticket, and there is no such thread in the child. */
static void a_child_waits_for_no_thread_of_its_parent(void) {
  enum { MANY = 100000 };
  static uint64_t keys[MANY];
  static float out[MANY * DIM];
  uint32_t table;
  hps_store *store = store_with_rows("waiting", &table);
  hps_lease *held, *lease;
  hps_ticket *ticket;
  pthread_t thread;
  int32_t ready;
  int status;
  size_t most = MANY;
  for (size_t i = 0; i < MANY; i++) keys[i] = i;
  while (hps_pull(store, table, keys, most, out, most * DIM, &held, NULL) == HPS_OVER_BUDGET)
    most -= most / 8;
  OK(hps_prefetch(store, table, keys + MANY - most / 2, most / 2, &ticket, &error));
  CHECK(pthread_create(&thread, NULL, wait_for_three_seconds, ticket) == 0);
  usleep(200000);
  OK(hps_ticket_poll(ticket, &ready, &error));
  CHECK(ready == 0);
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(20);
    FAILS(HPS_FORKED, NULL, hps_ticket_wait(ticket, 0, &lease, &error));
    hps_ticket_free(ticket);
    raise(SIGKILL);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(pthread_join(thread, NULL) == 0);
  hps_ticket_free(ticket);
  hps_lease_free(held);
  OK(hps_close(store, 0, &error));
  hps_store_free(store);
}

struct job {
  hps_store *store;
  uint32_t table;
  int pulls;
};

static void *pull_until_closed(void *argument) {
  enum { KEYS = 2000 };
  struct job *job = argument;
  for (;;) {
    uint64_t keys[KEYS];
    float out[KEYS * DIM];
    hps_lease *lease;
    for (size_t i = 0; i < KEYS; i++) keys[i] = i;
    int32_t code = hps_pull(job->store, job->table, keys, KEYS, out, KEYS * DIM, &lease, NULL);
    hps_lease_free(lease);
    if (code == HPS_INVALID_ARGUMENT) return NULL;
    CHECK(code == HPS_OK);
    job->pulls++;
  }
}

static void a_close_waits_for_calls_of_other_threads(void) {
  struct job jobs[3] = {{NULL, 0, 0}};
  pthread_t threads[3];
  uint32_t table;
  hps_store *store = store_with_rows("threads", &table);
  for (int i = 0; i < 3; i++) {
    jobs[i].store = store;
    jobs[i].table = table;
    CHECK(pthread_create(&threads[i], NULL, pull_until_closed, &jobs[i]) == 0);
  }
  usleep(200000);
  OK(hps_close(store, 0, &error));
  for (int i = 0; i < 3; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(jobs[i].pulls > 0);
  }
  hps_store_free(store);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  the_log_is_heard();
  handles_outlive_their_store();
  nothing_of_it_works_in_a_child();
  a_child_waits_for_no_thread_of_its_parent();
  a_close_waits_for_calls_of_other_threads();
  puts("all handles freed");
  return 0;
}
