/* Makes every call of hps.h, right and wrong: `all_calls DIRECTORY`, which is empty. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <unistd.h>

#include "check.h"

enum { DIM = 4 };

/* A program that was compiled with an older header goes on: no struct changes its size. */
static void structs_keep_their_sizes(void) {
  CHECK(sizeof(hps_hyper) == 28 && sizeof(hps_table_info) == 312 && sizeof(hps_update) == 88);
  CHECK(sizeof(hps_push_report) == 16 && sizeof(hps_put_report) == 16);
  CHECK(sizeof(hps_pull_part) == 40 && sizeof(hps_prefetch_part) == 24);
  CHECK(sizeof(hps_push_part) == 96 && sizeof(hps_checkpoint_info) == 32);
  CHECK(sizeof(hps_identity) == 40 && sizeof(hps_code) == 4);
}

static void options_are_set_and_checked(void) {
  hps_options *options = small_options();
  hps_table_options *of_table = hps_table_options_new();
  hps_hyper hyper;
  hps_store *store;
  CHECK(of_table != NULL);
  OK(hps_options_set_io_depth(options, 8, &error));
  OK(hps_options_set_policy(options, HPS_POLICY_LRU, &error));
  OK(hps_options_set_file_bytes(options, 1 << 20, &error));
  OK(hps_options_set_flush_step_rows(options, 0, &error));
  OK(hps_options_set_space_bound(options, 3.0, &error));
  OK(hps_options_set_compaction_threads(options, 1, &error));
  OK(hps_options_set_open_files_max(options, 64, &error));
  OK(hps_options_set_warm(options, 1, &error));
  OK(hps_options_set_disk_bytes_max(options, 1 << 30, &error));
  OK(hps_options_set_retain_checkpoints(options, 3, &error));
  OK(hps_options_set_inline(options, 1, &error));
  OK(hps_options_set_non_finite(options, HPS_NON_FINITE_REJECT, &error));
  OK(hps_hyper_default(&hyper, &error));
  CHECK(hyper.beta2 == 0.999f && hyper.momentum == 0.9f && hyper.lambda1 == 0.0f);
  hyper.beta1 = 0.5f;
  OK(hps_options_set_hyper(options, &hyper, &error));
  OK(hps_table_options_set_hyper(of_table, &hyper, &error));
  OK(hps_table_options_set_policy(of_table, HPS_POLICY_FIFO, &error));
  OK(hps_table_options_set_cache_bytes_min(of_table, 1 << 16, &error));
  OK(hps_table_options_set_cache_bytes_max(of_table, 1 << 20, &error));
  OK(hps_options_set_table(options, "clicks", of_table, &error));
  OK(hps_options_add_data_directory(options, "one", &error));
  OK(hps_options_add_data_directory(options, "two", &error));
  OK(hps_create(below("options"), options, &store, &error));
  OK(hps_close(store, 0, &error));
  hps_store_free(store);
  CHECK(access(below("options/one"), F_OK) == 0 && access(below("options/two"), F_OK) == 0);

  /* Both directories move, and the store is told where they are. */
  char one[4096], two[4096];
  snprintf(one, sizeof one, "%s", below("moved-one"));
  snprintf(two, sizeof two, "%s", below("moved-two"));
  CHECK(rename(below("options/one"), one) == 0 && rename(below("options/two"), two) == 0);
  FAILS(HPS_MISSING_DIRECTORY, NULL, hps_open(below("options"), options, &store, &error));
  CHECK(store == NULL);
  OK(hps_options_add_moved_directory(options, one, &error));
  OK(hps_options_add_moved_directory(options, two, &error));
  OK(hps_open(below("options"), options, &store, &error));
  OK(hps_close(store, 1, &error));
  hps_store_free(store);

  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_options_set_io(options, 9, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_options_set_policy(options, 5, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_options_set_non_finite(options, -1, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_table_options_set_policy(of_table, 99, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_set_cache_bytes(NULL, 1, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_set_hyper(options, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_hyper_default(NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_set_table(options, NULL, of_table, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_set_table(options, "t", NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_options_add_data_directory(options, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_options_set_table(options, "\xff", of_table, &error));

  /* Ranges are checked by the open, which names the option. */
  hps_error *error;
  OK(hps_options_set_shards(options, 0, &error));
  CHECK(hps_create(below("never"), options, &store, &error) == HPS_INVALID_ARGUMENT);
  CHECK(strcmp(hps_error_field_text(error, "name"), "shards") == 0);
  CHECK(strcmp(hps_error_field_text(error, "value"), "0") == 0);
  CHECK(hps_error_field_text(error, "no such field") == NULL);
  CHECK(hps_error_field_text(error, NULL) == NULL);
  uint64_t number = 77;
  CHECK(hps_error_field_u64(error, "name", &number) == 0 && number == 77);
  hps_error_free(error);
  CHECK(hps_error_code(NULL) == HPS_OK && hps_error_message(NULL) == NULL);
  CHECK(hps_error_kind(NULL) == NULL && hps_error_field_text(NULL, "name") == NULL);
  CHECK(hps_error_field_u64(NULL, "name", &number) == 0);

  hps_table_options_free(of_table);
  hps_options_free(options);
}

static void tables_come_and_go(void) {
  hps_options *options = small_options();
  hps_store *store;
  uint32_t ids[2] = {9, 9}, id;
  hps_descriptor *both[2] = {descriptor_of("clicks", DIM), descriptor_of("users", 2)};
  OK(hps_descriptor_set_optimizer(both[0], HPS_ADAM, &error));
  OK(hps_descriptor_set_initialiser(both[0], HPS_INIT_NORMAL, 0.0f, 0.5f, &error));
  OK(hps_descriptor_set_seed(both[0], 11, &error));
  OK(hps_descriptor_set_accumulator(both[0], 0.0f, &error));
  OK(hps_descriptor_set_metadata(both[0], HPS_METADATA_SHOW + HPS_METADATA_LAST_STEP, &error));
  OK(hps_descriptor_validate(both[0], &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_descriptor_set_optimizer(both[0], 7, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_descriptor_set_metadata(both[0], 16, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_descriptor_set_initialiser(both[0], 5, 0, 0, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_descriptor_set_seed(NULL, 1, &error));
  hps_descriptor *bad;
  FAILS(HPS_NULL_POINTER, NULL, hps_descriptor_new(NULL, 1, &bad, &error));
  CHECK(bad == NULL);
  bad = descriptor_of("bad", 0);
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_descriptor_validate(bad, &error));

  OK(hps_open_or_create(below("tables"), options, (const hps_descriptor *const *)both, 2, ids,
                        &store, &error));
  CHECK(ids[0] != ids[1]);
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_create_table(store, bad, &id, &error));
  hps_descriptor_free(bad);
  OK(hps_table(store, "users", &id, &error));
  CHECK(id == ids[1]);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable", hps_table(store, "nobody", &id, &error));

  hps_table_info info, infos[4];
  OK(hps_describe_table(store, ids[0], &info, &error));
  CHECK(info.id == ids[0] && info.dim == DIM && info.state_f32s == 2 * DIM + 1);
  CHECK(info.metadata_columns == 2 && info.row_f32s == DIM + 2 * DIM + 1 + 2);
  CHECK(info.optimizer == HPS_ADAM && info.initialiser == HPS_INIT_NORMAL && info.seed == 11);
  CHECK(info.metadata == 1 + 8 && info.init_b == 0.5f && strcmp(info.name, "clicks") == 0);
  CHECK(info.reserved == 0);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable", hps_describe_table(store, 99, &info, &error));
  size_t count = 0;
  OK(hps_tables(store, infos, 1, &count, &error));
  CHECK(count == 2 && infos[0].id == ids[0]);
  OK(hps_tables(store, NULL, 0, &count, &error));
  CHECK(count == 2);
  FAILS(HPS_NULL_POINTER, NULL, hps_tables(store, NULL, 1, &count, &error));

  hps_table_options *of_table = hps_table_options_new();
  OK(hps_table_options_set_policy(of_table, HPS_POLICY_LRU, &error));
  hps_descriptor *third = descriptor_of("third", 1);
  uint32_t third_id, again;
  OK(hps_create_table_with(store, third, of_table, &third_id, &error));
  OK(hps_create_table(store, third, &again, &error));
  CHECK(third_id == again);
  OK(hps_descriptor_set_seed(third, 5, &error));
  FAILS(HPS_INVALID_ARGUMENT, "DescriptorChanged", hps_create_table(store, third, &id, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_create_table_with(store, third, NULL, &id, &error));
  hps_table_options_free(of_table);

  hps_checkpoint_info checkpoint;
  OK(hps_checkpoint(store, 1, NULL, 0, &checkpoint, &error));
  OK(hps_rename_table(store, third_id, "fourth", &error));
  OK(hps_table(store, "fourth", &id, &error));
  CHECK(id == third_id);
  FAILS(HPS_INVALID_ARGUMENT, "TableExists",
        hps_rename_table(store, third_id, "clicks", &error));
  OK(hps_drop_table(store, third_id, &error));
  FAILS(HPS_INVALID_ARGUMENT, "TableDropped", hps_drop_table(store, third_id, &error));
  OK(hps_tables_at(store, checkpoint.id, infos, 4, &count, &error));
  CHECK(count == 3 && strcmp(infos[2].name, "third") == 0);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint",
        hps_tables_at(store, 99, infos, 4, &count, &error));
  int32_t changes = 9;
  OK(hps_has_changes(store, &changes, &error));
  CHECK(changes == 1);
  /* The close tells of them, and closes all the same. */
  FAILS(HPS_UNCHECKPOINTED, NULL, hps_close(store, 0, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Closed", hps_has_changes(store, &changes, &error));
  OK(hps_close(store, 0, &error));
  hps_store_free(store);

  hps_descriptor_free(third);
  hps_descriptor_free(both[0]);
  hps_descriptor_free(both[1]);
  hps_options_free(options);
}

/* Rows as `hps_pull` gives them, without keeping the lease. */
static void weights_of(hps_store *store, uint32_t table, const uint64_t *keys, size_t n,
                       float *out) {
  hps_lease *lease;
  OK(hps_pull(store, table, keys, n, out, n * DIM, &lease, &error));
  hps_lease_free(lease);
}

static void rows_are_pulled_and_pushed(hps_store *store, uint32_t table) {
  uint64_t keys[3] = {7, UINT64_MAX, 7};
  float weights[3 * DIM], after[3 * DIM], rows[3 * 3 * DIM];
  hps_lease *lease;
  hps_push_report report = {9, 9};
  OK(hps_pull(store, table, keys, 3, weights, 3 * DIM, &lease, &error));
  CHECK(hps_lease_len(lease) == 3 && hps_lease_parts(lease) == 1 && hps_lease_id(lease) > 0);
  CHECK(hps_lease_len(NULL) == 0 && hps_lease_parts(NULL) == 0 && hps_lease_id(NULL) == 0);
  CHECK(memcmp(weights, weights + 2 * DIM, DIM * sizeof(float)) == 0);
  uint32_t of;
  size_t len, dim, row_f32s;
  OK(hps_lease_part(lease, 0, &of, &len, &dim, &row_f32s, &error));
  CHECK(of == table && len == 3 && dim == DIM && row_f32s == 2 * DIM + 1);
  OK(hps_lease_part(lease, 0, NULL, NULL, NULL, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_lease_part(lease, 1, &of, NULL, NULL, NULL, &error));

  /* Gradients of equal keys are summed, and counted as one row. */
  float ones[3 * DIM];
  for (int i = 0; i < 3 * DIM; i++) ones[i] = 1.0f;
  OK(hps_push_gradients(store, lease, ones, 3 * DIM, 0.5f, &report, &error));
  CHECK(report.rows == 2 && report.non_finite == 0);
  OK(hps_lease_read(lease, after, 3 * DIM, &error));
  /* AdaGrad's first step is lr, whatever the gradient. */
  for (int i = 0; i < 3 * DIM; i++) CHECK(fabsf(after[i] - weights[i] + 0.5f) < 1e-4f);
  OK(hps_lease_read_part(lease, 0, after, 3 * DIM, &error));

  hps_update update;
  memset(&update, 0, sizeof update);
  update.kind = HPS_DELTAS;
  update.values = ones;
  update.values_len = 3 * DIM;
  OK(hps_push(store, lease, &update, NULL, &error));
  OK(hps_lease_read(lease, weights, 3 * DIM, &error));
  CHECK(weights[0] == after[0] + 1.0f + 1.0f && weights[DIM] == after[DIM] + 1.0f);

  uint32_t second[1] = {1}, shows[1] = {5}, clicks[1] = {2};
  update.kind = HPS_WEIGHTS;
  update.flags = HPS_AT_POSITIONS;
  update.values_len = DIM;
  update.positions = second;
  update.positions_len = 1;
  update.shows = shows;
  update.clicks = clicks;
  update.shows_clicks_len = 1;
  OK(hps_push(store, lease, &update, &report, &error));
  CHECK(report.rows == 1);
  OK(hps_lease_read(lease, weights, 3 * DIM, &error));
  CHECK(weights[DIM] == 1.0f && weights[0] != 1.0f);
  size_t width = 2 * DIM + 1;
  OK(hps_lease_read_rows_at(lease, 0, second, 1, rows, width, &error));
  uint32_t show;
  memcpy(&show, rows + 2 * DIM, sizeof show);
  CHECK(rows[0] == 1.0f && show == 5);

  OK(hps_lease_read_rows(lease, rows, 3 * width, &error));
  OK(hps_lease_read_rows_part(lease, 0, rows, 3 * width, &error));
  rows[0] = NAN;
  memset(&update, 0, sizeof update);
  update.kind = HPS_ROWS;
  update.flags = HPS_VERBATIM | HPS_AT_POSITIONS;
  update.values = rows;
  update.values_len = width;
  update.positions = second;
  update.positions_len = 1;
  OK(hps_push(store, lease, &update, &report, &error));
  OK(hps_lease_read(lease, weights, 3 * DIM, &error));
  CHECK(isnan(weights[DIM]) && report.non_finite == 0);

  update.kind = 4;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_push(store, lease, &update, NULL, &error));
  update.kind = HPS_ROWS;
  update.flags = 8;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_push(store, lease, &update, NULL, &error));
  update.flags = HPS_AT_POSITIONS;
  update.reserved[1] = 1;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_push(store, lease, &update, NULL, &error));
  update.reserved[1] = 0;
  second[0] = 3;
  FAILS(HPS_INVALID_ARGUMENT, "Position", hps_push(store, lease, &update, NULL, &error));
  second[0] = 1;
  update.values = NULL;
  FAILS(HPS_NULL_POINTER, NULL, hps_push(store, lease, &update, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_push(store, lease, NULL, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_push(store, NULL, &update, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_push_gradients(store, lease, ones, 3 * DIM - 1, 0.5f, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, NULL,
        hps_push_gradients(store, lease, ones, 3 * DIM, NAN, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length", hps_lease_read(lease, weights, DIM, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_lease_read(NULL, weights, DIM, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other",
        hps_lease_read(lease, (float *)((char *)weights + 1), 1, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_lease_read(lease, weights, SIZE_MAX, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_lease_read_part(lease, 1, weights, DIM, &error));
  hps_lease_free(lease);

  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_pull(store, table, keys, 3, weights, 3 * DIM - 1, &lease, &error));
  CHECK(lease == NULL);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable",
        hps_pull(store, 99, keys, 3, weights, 3 * DIM, &lease, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_pull(store, table, NULL, 3, weights, 3 * DIM, &lease, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pull(store, table, keys, 3, NULL, 3 * DIM, &lease, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_pull(store, table, keys, 3, weights, 3 * DIM, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_pull(NULL, table, keys, 3, weights, 3 * DIM, &lease, &error));
  OK(hps_pull(store, table, NULL, 0, NULL, 0, &lease, &error));
  hps_lease_free(lease);
}

static void a_batch_larger_than_the_cache_says_what_it_needs(hps_store *store, uint32_t table) {
  enum { MANY = 200000 };
  uint64_t *keys = malloc(MANY * sizeof *keys);
  float *out = malloc((size_t)MANY * DIM * sizeof *out);
  CHECK(keys != NULL && out != NULL);
  for (size_t i = 0; i < MANY; i++) keys[i] = i;
  hps_lease *lease;
  hps_error *error;
  CHECK(hps_pull(store, table, keys, MANY, out, (size_t)MANY * DIM, &lease, &error) ==
        HPS_OVER_BUDGET);
  uint64_t needed = 0, asked = 0, fit = 0;
  CHECK(hps_error_field_u64(error, "needed_bytes", &needed) == 1 && needed > 4 << 20);
  /* The rows of one shard times the shards: the one that needs most, which need not be the one
     with most of these keys while rows of another are being written. */
  CHECK(hps_error_field_u64(error, "asked_rows", &asked) == 1);
  CHECK(asked > MANY / 10 * 9 && asked < MANY / 10 * 11);
  CHECK(hps_error_field_u64(error, "capacity_rows", &fit) == 1 && fit < asked);
  CHECK(strcmp(hps_error_field_text(error, "table"), "clicks") == 0);
  CHECK(strcmp(hps_error_field_text(error, "leases"), "[]") == 0);
  hps_error_free(error);
  OK(hps_set_cache_bytes(store, needed + (1 << 20), &error));
  OK(hps_pull(store, table, keys, MANY, out, (size_t)MANY * DIM, &lease, &error));
  FAILS(HPS_OVER_BUDGET, NULL, hps_set_cache_bytes(store, 1 << 20, &error));
  hps_lease_free(lease);
  OK(hps_set_cache_bytes(store, 4 << 20, &error));
  free(keys);
  free(out);
}

static void several_tables_go_in_one_call(hps_store *store, uint32_t table, uint32_t other) {
  uint64_t some[2] = {100, 101}, one[1] = {100};
  float weights[2 * DIM], small[2], values[2 * DIM] = {0};
  hps_pull_part pulls[2];
  memset(pulls, 0, sizeof pulls);
  pulls[0].table = table;
  pulls[0].keys = some;
  pulls[0].keys_len = 2;
  pulls[0].out = weights;
  pulls[0].out_len = 2 * DIM;
  pulls[1].table = other;
  pulls[1].keys = one;
  pulls[1].keys_len = 1;
  pulls[1].out = small;
  pulls[1].out_len = 2;
  hps_lease *lease;
  OK(hps_pull_many(store, pulls, 2, &lease, &error));
  CHECK(hps_lease_parts(lease) == 2 && hps_lease_len(lease) == 3);
  uint32_t of;
  OK(hps_lease_part(lease, 1, &of, NULL, NULL, NULL, &error));
  CHECK(of == other);

  hps_push_part pushes[2];
  hps_push_report reports[2];
  memset(pushes, 0, sizeof pushes);
  pushes[0].table = table;
  pushes[0].update.kind = HPS_WEIGHTS;
  pushes[0].update.values = values;
  pushes[0].update.values_len = 2 * DIM;
  pushes[1].table = other;
  pushes[1].update.kind = HPS_WEIGHTS;
  pushes[1].update.flags = HPS_AT_POSITIONS;
  OK(hps_push_many(store, lease, pushes, 2, reports, &error));
  CHECK(reports[0].rows == 2 && reports[1].rows == 0);
  OK(hps_push_many(store, lease, pushes, 2, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length", hps_push_many(store, lease, pushes, 1, NULL, &error));
  pushes[0].table = other;
  FAILS(HPS_INVALID_ARGUMENT, "WrongTable", hps_push_many(store, lease, pushes, 2, NULL, &error));
  pushes[0].table = table;
  pushes[0].reserved = 1;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_push_many(store, lease, pushes, 2, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_push_many(store, lease, NULL, 2, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "SeveralParts",
        hps_push_gradients(store, lease, values, 2 * DIM, 0.1f, NULL, &error));
  hps_lease_free(lease);
  FAILS(HPS_INVALID_ARGUMENT, NULL, hps_pull_many(store, NULL, 0, &lease, &error));
  pulls[1].reserved = 1;
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_pull_many(store, pulls, 2, &lease, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_pull_many(store, NULL, 1, &lease, &error));

  hps_prefetch_part ahead[2];
  memset(ahead, 0, sizeof ahead);
  ahead[0].table = table;
  ahead[0].keys = some;
  ahead[0].keys_len = 2;
  ahead[1].table = other;
  ahead[1].keys = one;
  ahead[1].keys_len = 1;
  hps_ticket *ticket;
  OK(hps_prefetch_many(store, ahead, 2, &ticket, &error));
  OK(hps_ticket_wait(ticket, HPS_FOREVER, &lease, &error));
  hps_ticket_free(ticket);
  OK(hps_lease_read_part(lease, 0, weights, 2 * DIM, &error));
  for (int i = 0; i < 2 * DIM; i++) CHECK(weights[i] == 0.0f);
  hps_lease_free(lease);
  ahead[1].keys = NULL;
  FAILS(HPS_NULL_POINTER, NULL, hps_prefetch_many(store, ahead, 2, &ticket, &error));
  ahead[1].keys = one;
  ahead[1].table = 99;
  FAILS(HPS_INVALID_ARGUMENT, "UnknownTable", hps_prefetch_many(store, ahead, 2, &ticket, &error));
}

static void tickets_are_polled_and_waited_for(hps_store *store, uint32_t table) {
  enum { MANY = 100000 };
  static uint64_t keys[MANY];
  static float out[MANY * DIM];
  for (size_t i = 0; i < MANY; i++) keys[i] = i;
  hps_ticket *ticket, *late;
  hps_lease *lease, *held;
  int32_t ready = 9;
  uint64_t waited = 0;
  OK(hps_prefetch(store, table, keys, 100, &ticket, &error));
  for (ready = 0; !ready;) OK(hps_ticket_poll(ticket, &ready, &error));
  OK(hps_ticket_wait(ticket, 0, &lease, &error));
  CHECK(hps_lease_len(lease) == 100);
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_ticket_wait(ticket, 0, &held, &error));
  CHECK(held == NULL);
  OK(hps_ticket_poll(ticket, &ready, &error));
  CHECK(ready == 1);
  hps_ticket_free(ticket);
  hps_lease_free(lease);

  /* A prefetch that has no room beside a lease is not there in time, and comes once there is. */
  size_t most = MANY;
  while (hps_pull(store, table, keys, most, out, most * DIM, &held, NULL) == HPS_OVER_BUDGET)
    most -= most / 8;
  CHECK(held != NULL);
  uint64_t *others = malloc(most * sizeof *others);
  CHECK(others != NULL);
  for (size_t i = 0; i < most; i++) others[i] = MANY + i;
  OK(hps_prefetch(store, table, others, most, &late, &error));
  hps_error *error;
  CHECK(hps_ticket_wait(late, 20000, &lease, &error) == HPS_DEADLINE);
  CHECK(lease == NULL && hps_error_field_u64(error, "waited_ms", &waited) == 1 && waited >= 20);
  hps_error_free(error);
  OK(hps_ticket_poll(late, &ready, &error));
  CHECK(ready == 0);
  hps_checkpoint_info last;
  OK(hps_checkpoint(store, 1, NULL, 0, &last, &error));
  FAILS(HPS_INVALID_ARGUMENT, "LeasesOutstanding", hps_rollback(store, last.id, &error));
  hps_lease_free(held);
  OK(hps_ticket_wait(late, HPS_FOREVER, &lease, &error));
  hps_lease_free(lease);
  hps_ticket_free(late);

  /* Freed without a wait, it is cancelled. */
  OK(hps_prefetch(store, table, others, most, &late, &error));
  hps_ticket_free(late);
  free(others);
  while (counter(store, "leases") > 0) continue;
  FAILS(HPS_NULL_POINTER, NULL, hps_ticket_wait(NULL, 0, &lease, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_ticket_poll(NULL, &ready, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_prefetch(store, table, NULL, 1, &ticket, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_prefetch(store, table, keys, 1, NULL, &error));
}

static void rows_are_put_found_and_removed(hps_store *store, uint32_t table) {
  uint64_t keys[4] = {1000, 1001, 1000, 1002};
  float values[4 * DIM], weights[4 * DIM], rows[4 * (2 * DIM + 1)];
  for (int i = 0; i < 4 * DIM; i++) values[i] = (float)i;
  uint8_t found[4] = {9, 9, 9, 9};
  OK(hps_contains(store, table, keys, 4, found, &error));
  CHECK(found[0] == 0 && found[1] == 0 && found[3] == 0);
  hps_put_report report;
  OK(hps_put(store, table, keys, 3, HPS_WEIGHTS, values, 3 * DIM, 0, &report, &error));
  CHECK(report.rows == 3 && report.non_finite == 0);
  OK(hps_contains(store, table, keys, 4, found, &error));
  CHECK(found[0] == 1 && found[1] == 1 && found[2] == 1 && found[3] == 0);
  weights_of(store, table, keys, 4, weights);
  CHECK(weights[0] == 2.0f * DIM && weights[DIM] == DIM);
  memset(rows, 0, sizeof rows);
  rows[0] = INFINITY;
  OK(hps_put(store, table, keys + 3, 1, HPS_ROWS, rows, 2 * DIM + 1, HPS_VERBATIM, NULL, &error));
  weights_of(store, table, keys, 4, weights);
  CHECK(isinf(weights[3 * DIM]));
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_put(store, table, keys, 1, HPS_GRADIENTS, values, DIM, 0, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_put(store, table, keys, 1, HPS_WEIGHTS, values, DIM, 2, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_put(store, table, keys, 1, HPS_WEIGHTS, values, 1, 0, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_put(store, table, keys, 1, HPS_WEIGHTS, NULL, DIM, 0, NULL, &error));

  uint64_t removed = 9, distinct[4];
  uint32_t inverse[4];
  size_t count;
  OK(hps_unique(store, keys, 4, distinct, inverse, &count, &error));
  CHECK(count == 3);
  for (int i = 0; i < 4; i++) CHECK(distinct[inverse[i]] == keys[i]);
  FAILS(HPS_NULL_POINTER, NULL, hps_unique(store, keys, 4, NULL, inverse, &count, &error));
  OK(hps_remove(store, table, keys, 4, &removed, &error));
  CHECK(removed == 3);
  OK(hps_remove(store, table, keys, 4, NULL, &error));
  OK(hps_contains(store, table, keys, 4, found, &error));
  CHECK(found[0] == 0 && found[3] == 0);
  FAILS(HPS_NULL_POINTER, NULL, hps_remove(store, table, NULL, 4, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_contains(store, table, keys, 4, NULL, &error));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  CHECK(strchr(hps_version(), '.') != NULL && hps_format_version() > 0);
  structs_keep_their_sizes();
  options_are_set_and_checked();
  tables_come_and_go();

  hps_options *options = small_options();
  hps_store *store;
  hps_descriptor *clicks = descriptor_of("clicks", DIM), *users = descriptor_of("users", 2);
  uint32_t table, other;
  FAILS(HPS_INVALID_ARGUMENT, "NotAStore", hps_open(below("store"), options, &store, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_open(NULL, options, &store, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_create(below("store"), options, NULL, &error));
  OK(hps_create(below("store"), options, &store, &error));
  OK(hps_descriptor_set_metadata(clicks, HPS_METADATA_SHOW, &error));
  OK(hps_create_table(store, clicks, &table, &error));
  OK(hps_create_table(store, users, &other, &error));
  rows_are_pulled_and_pushed(store, table);
  several_tables_go_in_one_call(store, table, other);
  rows_are_put_found_and_removed(store, table);
  /* Before a prefetch is cancelled: what that has admitted by then counts as somebody else's. */
  a_batch_larger_than_the_cache_says_what_it_needs(store, table);
  tickets_are_polled_and_waited_for(store, table);
  OK(hps_set_compaction_rate(store, 1 << 20, &error));
  OK(hps_set_compaction_rate(store, 0, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_close(NULL, 0, &error));
  OK(hps_close(store, 1, &error));
  hps_store_free(store);
  hps_descriptor_free(clicks);
  hps_descriptor_free(users);
  hps_options_free(options);

  /* NULL is freed like any handle, and an error that nobody wants is lost. */
  hps_store_free(NULL);
  hps_options_free(NULL);
  hps_table_options_free(NULL);
  hps_descriptor_free(NULL);
  hps_lease_free(NULL);
  hps_ticket_free(NULL);
  hps_checkpoint_ticket_free(NULL);
  hps_bytes_free(NULL);
  hps_hold_free(NULL);
  hps_row_iter_free(NULL);
  hps_stats_free(NULL);
  hps_error_free(NULL);
  CHECK(hps_close(NULL, 0, NULL) == HPS_NULL_POINTER);
  puts("all calls made");
  return 0;
}
