/* A trainer in C: embeddings that are learned batch by batch, and that survive its being killed.
 *
 *   cc -std=c99 -O2 train.c $(pkg-config --cflags --libs hps) -o train
 *   ./train DIRECTORY [BATCHES [BATCHES_PER_CHECKPOINT]]
 *
 * The task is made up: each key has eight numbers that its weights are to come near. While a batch
 * trains, the rows of the next one are read. Kill it at any moment and start it again with the same
 * arguments: it goes on at its last checkpoint, and its last line is that of a run which was never
 * killed.
 *
 * Exit codes: 0 done, 8 the store failed, 16 wrong arguments.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hps.h>

enum { DIM = 8, KEYS = 512, KEYS_IN_ALL = 100000 };

static const float LEARNING_RATE = 0.1f;

/* Ends the program where a call failed. */
static void check(int32_t code, hps_error *error) {
  if (code == HPS_OK) return;
  fprintf(stderr, "train: %s\n", hps_error_message(error));
  hps_error_free(error);
  exit(8);
}

static uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* The keys of a batch: a function of its number, as lines of a file are. Small ones are frequent. */
static void read_batch(uint64_t batch, uint64_t keys[KEYS]) {
  for (uint64_t i = 0; i < KEYS; i++) {
    uint64_t random = scramble(batch * KEYS + i);
    uint64_t below = 1 + scramble(random) % KEYS_IN_ALL;
    keys[i] = random % below;
  }
}

/* The gradient of half the squared distance between the weights and what they are to be. */
static void differentiate(const uint64_t keys[KEYS], const float *weights, float *gradients) {
  for (size_t i = 0; i < KEYS; i++)
    for (size_t d = 0; d < DIM; d++) {
      float wanted = (float)(scramble(keys[i] * DIM + d) >> 40) / (float)(1 << 23) - 1.0f;
      gradients[i * DIM + d] = weights[i * DIM + d] - wanted;
    }
}

static hps_ticket *prefetch(hps_store *store, uint32_t table, uint64_t batch) {
  uint64_t keys[KEYS];
  hps_ticket *ticket;
  hps_error *error;
  read_batch(batch, keys);
  int32_t code = hps_prefetch(store, table, keys, KEYS, &ticket, &error);
  check(code, error);
  return ticket;
}

static void train_batch(hps_store *store, uint64_t batch, hps_ticket *ticket) {
  static float weights[KEYS * DIM], gradients[KEYS * DIM];
  uint64_t keys[KEYS];
  hps_lease *lease;
  hps_error *error;
  int32_t code = hps_ticket_wait(ticket, HPS_FOREVER, &lease, &error);
  check(code, error);
  hps_ticket_free(ticket);
  code = hps_lease_read(lease, weights, KEYS * DIM, &error);
  check(code, error);
  read_batch(batch, keys);
  differentiate(keys, weights, gradients);
  code = hps_push_gradients(store, lease, gradients, KEYS * DIM, LEARNING_RATE, NULL, &error);
  check(code, error);
  hps_lease_free(lease);
}

/* What belongs to a checkpoint beside the rows: here, the number of the next batch. */
static void checkpoint(hps_store *store, uint64_t next_batch) {
  uint8_t meta[8];
  hps_checkpoint_info info;
  hps_error *error;
  for (int i = 0; i < 8; i++) meta[i] = (uint8_t)(next_batch >> (8 * i));
  int32_t code = hps_checkpoint(store, next_batch, meta, sizeof meta, &info, &error);
  check(code, error);
  printf("checkpoint %llu: %llu batches\n", (unsigned long long)info.id,
         (unsigned long long)next_batch);
  fflush(stdout);
}

/* The batch to go on with: 0, or what the last checkpoint says. */
static uint64_t next_batch_of(hps_store *store) {
  hps_checkpoint_info last;
  hps_bytes *meta;
  hps_error *error;
  uint64_t next_batch = 0;
  int32_t code = hps_last_checkpoint(store, &last, &error);
  check(code, error);
  if (last.id == 0) return 0;
  code = hps_checkpoint_meta(store, last.id, &meta, &error);
  check(code, error);
  for (size_t i = 0; i < hps_bytes_len(meta); i++)
    next_batch |= (uint64_t)hps_bytes_data(meta)[i] << (8 * i);
  hps_bytes_free(meta);
  return next_batch;
}

/* Reads every row of the last checkpoint, weights and optimizer state, and says what they are. */
static void print_digest(hps_store *store) {
  enum { ROWS = 256, ROW = 2 * DIM };
  static float values[ROWS * ROW];
  uint64_t keys[ROWS], digest = 0xcbf29ce484222325u, rows = 0;
  hps_checkpoint_info last;
  hps_row_iter *iter;
  hps_error *error;
  uint32_t table;
  size_t count;
  int32_t code = hps_last_checkpoint(store, &last, &error);
  check(code, error);
  if (last.id == 0) return;
  code = hps_rows(store, last.id, &iter, &error);
  check(code, error);
  do {
    code = hps_row_iter_next(iter, keys, ROWS, values, ROWS * ROW, NULL, &table, &count, &error);
    check(code, error);
    for (size_t i = 0; i < count; i++) digest = scramble(digest ^ keys[i]);
    for (size_t i = 0; i < count * ROW; i++) {
      uint32_t bits;
      memcpy(&bits, &values[i], sizeof bits);
      digest = scramble(digest ^ bits);
    }
    rows += count;
  } while (count > 0);
  hps_row_iter_free(iter);
  printf("%llu rows, digest %016llx\n", (unsigned long long)rows, (unsigned long long)digest);
}

int main(int argc, char **argv) {
  if (argc < 2 || argc > 4) {
    fprintf(stderr, "usage: train DIRECTORY [BATCHES [BATCHES_PER_CHECKPOINT]]\n");
    return 16;
  }
  uint64_t batches = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
  uint64_t every = argc > 3 ? strtoull(argv[3], NULL, 10) : 100;
  if (every == 0) every = 1;

  hps_error *error;
  hps_descriptor *descriptor;
  hps_store *store;
  uint32_t table;
  int32_t code = hps_descriptor_new("clicks", DIM, &descriptor, &error);
  check(code, error);
  code = hps_descriptor_set_optimizer(descriptor, HPS_ADAGRAD, &error);
  check(code, error);
  /* Less than the rows take: they live on disk. */
  hps_options *options = hps_options_new();
  code = hps_options_set_cache_bytes(options, 4 << 20, &error);
  check(code, error);
  const hps_descriptor *tables[1] = {descriptor};
  code = hps_open_or_create(argv[1], options, tables, 1, &table, &store, &error);
  check(code, error);
  hps_options_free(options);
  hps_descriptor_free(descriptor);

  uint64_t first = next_batch_of(store), done = first;
  if (first > 0) fprintf(stderr, "train: goes on after %llu batches\n", (unsigned long long)first);
  hps_ticket *ticket = first < batches ? prefetch(store, table, first) : NULL;
  for (uint64_t batch = first; batch < batches; batch++) {
    hps_ticket *now = ticket;
    ticket = batch + 1 < batches ? prefetch(store, table, batch + 1) : NULL;
    train_batch(store, batch, now);
    done = batch + 1;
    if (done % every == 0 || done == batches) checkpoint(store, done);
  }
  print_digest(store);
  code = hps_close(store, 0, &error);
  check(code, error);
  hps_store_free(store);
  return 0;
}
