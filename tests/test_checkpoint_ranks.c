/* Checkpoints of several ranks: threads here, each with a table of its own that holds cuts of every
 * kind. */
#include "tests/values.h"

#include <sys/stat.h>

#include "data/checkpoint.h"
#include "data/io.h"
#include "data/llmc.h"
#include "parallel/comm/ranks.h"

enum { MAX_RANKS = 6 };

static const char MIXED[] = "layers=1,heads=2,channels=24,seq=6,vocab=37,pos=rope,act=swiglu";

/* ---- a table that is cut ---- */

/* Ranks as [z][x][y]: flat parts over z, blocks over x and y. */
static const int meshes[][3] = {{1, 1, 1}, {1, 2, 1}, {2, 1, 1}, {1, 1, 3}, {3, 1, 1}, {1, 2, 2},
                                {2, 2, 1}, {2, 1, 2}, {5, 1, 1}, {1, 5, 1}, {2, 3, 1}, {1, 2, 3}};
enum { N_MESHES = N_OF(meshes) };

static int mesh_ranks(int mesh) {
    return meshes[mesh][0] * meshes[mesh][1] * meshes[mesh][2];
}

typedef enum { CUT_NOT, CUT_ROWS, CUT_BOTH, CUT_BANDS, CUT_OVERLAP, N_CUTS } Cut;

static int64_t part_begin(int64_t n, int i, int parts) {
    int64_t step = (n + parts - 1) / parts;
    return step * i < n ? step * i : n;
}

static void add_rect(Tensor *t, TensorRect r) {
    t->rects[t->n_rects++] = r;
}

/* Columns over x: three bands of them (as Q, K and V), or blocks that share a column with their
 * neighbour. */
static void cut_columns(Tensor *t, Cut cut, int x, int X) {
    int64_t at = 0, bands = cut == CUT_BANDS ? 3 : 1;
    for (int64_t k = 0; k < bands; k++) {
        int64_t begin = k * t->cols / bands, n = (k + 1) * t->cols / bands - begin;
        int64_t from = begin + part_begin(n, x, X), to = begin + part_begin(n, x + 1, X);
        if (cut == CUT_OVERLAP && x > 0 && from < to)
            add_rect(t, (TensorRect){0, from - 1, t->rows, 1, at++, false});
        add_rect(t, (TensorRect){0, from, t->rows, to - from, at, true});
        at += to - from;
    }
    t->local_rows = t->rows + 1, t->local_cols = at + 2;
}

static void cut_tensor(Tensor *t, Cut cut, const int size[3], int rank) {
    int y = rank % size[2], x = rank / size[2] % size[1], z = rank / size[2] / size[1];
    bool first = true;
    t->rects = mem_realloc(t->rects, 8, sizeof *t->rects);
    t->n_rects = 0;
    if (cut == CUT_NOT) {
        add_rect(t, (TensorRect){0, 0, t->rows, t->cols, 0, true});
        first = x == 0 && y == 0;
    } else if (cut == CUT_ROWS || cut == CUT_BOTH) {
        int Y = cut == CUT_BOTH ? size[2] : 1, j = cut == CUT_BOTH ? y : 0;
        int64_t r0 = part_begin(t->rows, x, size[1]), r1 = part_begin(t->rows, x + 1, size[1]);
        int64_t c0 = part_begin(t->cols, j, Y), c1 = part_begin(t->cols, j + 1, Y);
        t->local_rows = (t->rows + size[1] - 1) / size[1], t->local_cols = (t->cols + Y - 1) / Y;
        add_rect(t, (TensorRect){r0, c0, r1 - r0, c1 - c0, 0, true});
        first = cut == CUT_BOTH || y == 0;
    } else {
        cut_columns(t, cut, x, size[1]);
        first = y == 0;
    }
    int64_t n = t->local_rows * t->local_cols, step = (n + size[0] - 1) / size[0];
    for (int part = 0; part < N_PARTS; part++) {
        bool flat = cut != CUT_NOT && (part == PART_MOMENTS || cut != CUT_BOTH);
        t->begin[part] = flat ? z * step : 0;
        t->end[part] = flat ? (z + 1) * step : n;
        t->first[part] = first && (flat || z == 0);
    }
}

/* ---- values: a function of the logical element, and something else in the padding ---- */

static const float PADDING = 777;

static float value(int tensor, int kind, int64_t index, unsigned seed) {
    uint64_t x = (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)(3 * tensor + kind) * 1000003 +
                 seed * 0xd1b54a32d192ed03u;
    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

typedef struct CutModel {
    TensorTable t;
    unsigned cut; // shifts which tensor is cut how
} CutModel;

static float **values_at(Tensor *t, int kind) {
    return kind == 0 ? &t->param : kind == 1 ? &t->m : &t->v;
}
static TensorPart part_of(int kind) {
    return kind == 0 ? PART_PARAM : PART_MOMENTS;
}

static CutModel cut_model_make(const char *config, int mesh, int rank, unsigned cut) {
    Config c = config_of(config);
    CutModel m = {tensors_describe(&c), cut};
    for (int i = 0; i < m.t.n; i++) {
        cut_tensor(&m.t.t[i], (Cut)(((unsigned)i + cut) % N_CUTS), meshes[mesh], rank);
        for (int kind = 0; kind < 3; kind++) {
            int64_t n = tensor_part(&m.t.t[i], part_of(kind));
            float *x = *values_at(&m.t.t[i], kind) = mem_alloc((size_t)n * sizeof *x);
            for (int64_t j = 0; j < n; j++) x[j] = PADDING;
        }
    }
    return m;
}

static void cut_model_free(CutModel *m) {
    for (int i = 0; i < m->t.n; i++)
        for (int kind = 0; kind < 3; kind++) mem_free(*values_at(&m->t.t[i], kind));
    tensors_free(&m->t);
}

static void cut_model_fill(CutModel *m, unsigned seed) {
    for (int i = 0; i < m->t.n; i++)
        for (int kind = 0; kind < 3; kind++) {
            Tensor *t = &m->t.t[i];
            float *x = *values_at(t, kind);
            TensorRun r;
            for (TensorRuns k = tensor_runs(t, part_of(kind), false); tensor_next(&k, &r);)
                for (int64_t j = 0; j < r.n; j++)
                    x[r.offset + j] = value(i, kind, r.row * t->cols + r.col + j, seed);
        }
}

/* Are all values of the first `kinds` those of the seed, and the padding as it was? */
static bool model_is(CutModel *m, unsigned seed, int kinds) {
    bool same = true;
    for (int i = 0; i < m->t.n; i++)
        for (int kind = 0; kind < kinds; kind++) {
            Tensor *t = &m->t.t[i];
            float *x = *values_at(t, kind);
            TensorRun r;
            int64_t held = 0, padding = 0;
            for (TensorRuns k = tensor_runs(t, part_of(kind), false); tensor_next(&k, &r);)
                for (int64_t j = 0; j < r.n; j++, held++)
                    same &= x[r.offset + j] == value(i, kind, r.row * t->cols + r.col + j, seed);
            for (int64_t j = 0; j < tensor_part(t, part_of(kind)); j++) padding += x[j] == PADDING;
            same &= held + padding == tensor_part(t, part_of(kind));
        }
    return same;
}

/* The same elements in the same order as the runs, in few pieces. */
static bool rects_are_runs(const Tensor *t, TensorPart part, bool first) {
    TensorRuns runs = tensor_runs(t, part, first), rects = runs;
    TensorRun a;
    TensorRect r;
    bool same = true;
    int pieces = 0;
    for (; tensor_next_rect(&rects, &r); pieces++)
        for (int64_t i = 0; i < r.rows; i++)
            same &= tensor_next(&runs, &a) && a.row == r.row + i && a.col == r.col &&
                    a.n == r.cols && a.offset == r.offset + i * t->local_cols;
    return same && !tensor_next(&runs, &a) && pieces <= 3 * t->n_rects;
}

TEST(tensor_rectangles_are_its_runs) {
    int bad = 0;
    for (int mesh = 0; mesh < N_MESHES; mesh++)
        for (int rank = 0; rank < mesh_ranks(mesh); rank++)
            for (unsigned cut = 0; cut < N_CUTS; cut++) {
                CutModel m = cut_model_make(MIXED, mesh, rank, cut);
                for (int i = 0; i < m.t.n; i++)
                    for (int k = 0; k < 2 * N_PARTS; k++)
                        bad += !rects_are_runs(&m.t.t[i], (TensorPart)(k / 2), k % 2);
                cut_model_free(&m);
            }
    CHECK(bad == 0);
}

/* ---- what the ranks do ---- */

typedef struct Job {
    enum { SAVE, LOAD, EXPORT, LLMC_SAVE, LLMC_LOAD, LATEST, DIGEST, TEXT } what;
    const char *config, *path;
    int mesh;
    int64_t step;
    int keep;
    unsigned seed, cut;
    int fail_rank, fail_at; // a call of that rank fails, or kills the process
    bool kill;
    // results
    bool ok[MAX_RANKS];
    Err e[MAX_RANKS];
    char *text[MAX_RANKS];
    uint64_t digest[MAX_RANKS];
    int left[MAX_RANKS]; // names in the folder the moment a rank knows: it may end the program then
} Job;

static bool work(Job *j, CutModel *m, const Group *g, Err *e) {
    int64_t step = 0;
    int r = g->rank;
    const char *dir = r == 0 ? j->path : "/nowhere"; // what rank 0 alone decides
    CheckpointOptions o = {.keep_last = j->keep};
    switch (j->what) {
    case SAVE:
        return checkpoint_save(j->path, j->step, &m->t, "{\"x\":1}", &o, g, e);
    case LOAD:
        return checkpoint_load(j->path, &m->t, &j->text[r], g, e) && model_is(m, j->seed, 3);
    case EXPORT:
        return weights_export(j->path, &m->t, "BF16", g, e);
    case LLMC_SAVE:
        return llmc_model_save(j->path, &m->t, LLMC_FP32, g, e);
    case LLMC_LOAD:
        return weights_load(j->path, &m->t, g, e) && model_is(m, j->seed, 1);
    case LATEST:
        j->text[r] = checkpoint_latest(dir, &step, g);
        return step == j->step;
    case DIGEST:
        j->digest[r] = weights_digest(&m->t, g);
        return true;
    default:
        if (r == 2) die_adopt_rank((DieRank){"rank 2 on node7: "});
        return group_agree(g, r != j->fail_rank || err(e, "the reason of %d", r), e);
    }
}

static int rank_main(World *w, void *ctx) {
    Job *j = ctx;
    Group g = comm_group(world_comm(w));
    CutModel m = cut_model_make(j->config, j->mesh, g.rank, j->cut);
    if (j->what != LOAD && j->what != LLMC_LOAD) cut_model_fill(&m, j->seed);
    if (j->fail_at && j->fail_rank == g.rank) io_inject(j->fail_at, j->kill);
    j->ok[g.rank] = work(j, &m, &g, &j->e[g.rank]);
    io_inject(0, false);
    j->left[g.rank] = j->ok[g.rank] ? 0 : count_names(j->path);
    cut_model_free(&m);
    return 0;
}

/* True when all ranks succeeded; j->text of the ranks is to be freed by job_free. */
static bool job_run(Job *j) {
    int n = mesh_ranks(j->mesh);
    bool ok = true;
    ranks_run(n, rank_main, j);
    for (int i = 0; i < n; i++) {
        ok &= j->ok[i];
        if (!j->ok[i] && !j->fail_at) printf("    rank %d: %s\n", i, j->e[i].text);
    }
    return ok;
}

static void job_free(Job *j) {
    for (int i = 0; i < MAX_RANKS; i++) mem_free(j->text[i]), j->text[i] = NULL;
}

/* ---- the tests ---- */

TEST(checkpoint_test_tables_hold_each_element_once) { // what the other tests stand on
    Config c = config_of(MIXED);
    OWNED(tensors_free) TensorTable logical = tensors_describe(&c);
    for (int mesh = 0; mesh < N_MESHES; mesh++)
        for (int i = 0; i < logical.n; i++)
            for (int kind = 0; kind < 2; kind++) {
                int64_t n = tensor_size(&logical.t[i]), wrong = 0;
                OWNED(test_mem_end) int *times = mem_calloc((size_t)n, sizeof *times);
                for (int rank = 0; rank < mesh_ranks(mesh); rank++) {
                    CutModel m = cut_model_make(MIXED, mesh, rank, (unsigned)mesh);
                    const Tensor *t = &m.t.t[i];
                    TensorRun r;
                    for (TensorRuns k = tensor_runs(t, part_of(kind), true); tensor_next(&k, &r);)
                        for (int64_t j = 0; j < r.n; j++) times[r.row * t->cols + r.col + j]++;
                    cut_model_free(&m);
                }
                for (int64_t j = 0; j < n; j++) wrong += times[j] != 1;
                CHECK(wrong == 0);
            }
}

static void any_ranks(const char *config) {
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "train_state.json", "checkpoint.json"};
    const char *dir[N_MESHES];
    for (int p = 0; p < N_MESHES; p++) {
        dir[p] = test_tmpdir();
        Job save = {.what = SAVE, .config = config, .path = dir[p], .mesh = p, .step = 7};
        save.seed = 5, save.cut = (unsigned)p;
        CHECK(job_run(&save) && count_names(dir[p]) == 1);
        for (EACH(file, files)) // whoever wrote it
            CHECK(test_same_files(test_path("%s/step_00000007/%s", dir[0], *file),
                                  test_path("%s/step_00000007/%s", dir[p], *file)));
    }
    for (int q = 0; q < N_MESHES; q++) {
        Job load = {.what = LOAD, .config = config, .mesh = q, .seed = 5, .cut = (unsigned)q + 2};
        load.path = test_path("%s/step_00000007", dir[N_MESHES - 1 - q]);
        bool ok = job_run(&load);
        for (int r = 0; ok && r < mesh_ranks(q); r++) ok = strcmp(load.text[r], "{\"x\":1}") == 0;
        job_free(&load);
        CHECK(ok);
    }
}

TEST(checkpoint_of_any_ranks_is_the_same_and_any_ranks_read_it_gpt2) {
    any_ranks(GPT2);
}
TEST(checkpoint_of_any_ranks_is_the_same_and_any_ranks_read_it_llama) {
    any_ranks(LLAMA);
}
TEST(checkpoint_of_any_ranks_is_the_same_and_any_ranks_read_it_mixed) {
    any_ranks(MIXED);
}

TEST(checkpoint_newest_is_what_rank_0_finds) {
    const char *dir = test_tmpdir();
    Job save = {.what = SAVE, .config = GPT2, .path = dir, .mesh = 6, .step = 12, .seed = 1};
    CHECK(job_run(&save));
    Job latest = {.what = LATEST, .config = GPT2, .path = dir, .mesh = 10, .step = 12};
    const char *want = test_path("%s/step_00000012", dir);
    bool ok = job_run(&latest);
    for (int r = 0; r < mesh_ranks(10); r++) ok &= latest.text[r] && !strcmp(latest.text[r], want);
    job_free(&latest);
    CHECK(ok);
    Job none = {.what = LATEST, .config = GPT2, .path = "/nowhere", .mesh = 10, .step = -1};
    CHECK(job_run(&none) && !none.text[0] && !none.text[5]);
}

TEST(checkpoint_damage_is_noticed_by_all_ranks) {
    const char *dir = test_tmpdir();
    char *folder = test_path("%s/step_00000001", dir);
    char *path = test_path("%s/model.safetensors", folder);
    Job save = {.what = SAVE, .config = LLAMA, .path = dir, .mesh = 7, .step = 1, .seed = 1};
    CHECK(job_run(&save));
    struct stat st;
    CHECK(stat(path, &st) == 0);
    for (long at = 0; at < st.st_size; at += st.st_size / 17) { // in every rank's share
        flip_byte(path, at, 4);
        Job load = {.what = LOAD, .config = LLAMA, .path = folder, .mesh = 9, .fail_at = -1};
        bool ok = job_run(&load);
        flip_byte(path, at, 4);
        CHECK(!ok);
        for (int r = 0; r < mesh_ranks(9); r++)
            CHECK(!load.ok[r] && strstr(load.e[r].text, "model.safetensors is damaged"));
    }
    Job load = {.what = LOAD, .config = LLAMA, .path = folder, .mesh = 9, .seed = 1};
    bool ok = job_run(&load);
    job_free(&load);
    CHECK(ok);
}

TEST(group_gives_the_reason_of_the_rank_that_failed) {
    Job j = {.what = TEXT, .config = GPT2, .mesh = 5, .fail_rank = 2, .fail_at = -1};
    CHECK(!job_run(&j));
    for (int r = 0; r < 4; r++) {
        CHECK(!j.ok[r]);
        CHECK_STR(j.e[r].text, r == 2 ? "the reason of 2" : "rank 2 on node7: the reason of 2");
    }
    j.fail_rank = -1;
    CHECK(job_run(&j));
}

/* ---- failures ---- */

static const char TINY[] = "llama,layers=1,heads=2,channels=4,ffn=6,seq=4,vocab=5";

static bool newest_is(const char *dir, int64_t step, unsigned seed) {
    Job latest = {.what = LATEST, .config = TINY, .path = dir, .step = step};
    Job load = {.what = LOAD, .config = TINY, .seed = seed};
    load.path = test_path("%s/step_%08d", dir, (int)step);
    bool ok = job_run(&latest) && job_run(&load);
    job_free(&latest);
    job_free(&load);
    return ok;
}

TEST(checkpoint_of_ranks_survives_a_failure_of_any_rank_at_any_write) {
    const char *dir = test_tmpdir();
    OWNED(test_mem_end) char *step_2 = mem_printf("%s/step_00000002", dir);
    Job first = {.what = SAVE, .config = TINY, .path = dir, .mesh = 5, .step = 1, .seed = 1};
    CHECK(job_run(&first));
    for (int rank = 0; rank < 4; rank++) {
        int at = 1;
        for (;; at++) {
            Job j = {.what = SAVE, .config = TINY, .path = dir, .mesh = 5, .step = 2, .seed = 2};
            j.cut = 1, j.fail_rank = rank, j.fail_at = at, j.keep = 1;
            const char *who = test_path("rank %d: ", rank);
            if (job_run(&j)) break;
            for (int r = 0; r < 4; r++) { // all ranks fail, with the reason and whose it is
                CHECK(!j.ok[r] && strstr(j.e[r].text, "No space left on device"));
                CHECK((strncmp(j.e[r].text, who, strlen(who)) == 0) == (r != rank));
            }
            bool there = io_exists(step_2);
            for (int r = 0; r < 4; r++) CHECK(j.left[r] == 1 + there); // no left-overs
            if (there) // only its name was not yet durable: the old one stays
                CHECK(rank == 0 && newest_is(dir, 2, 2) && io_remove_tree(step_2, NULL));
            CHECK(count_names(dir) == 1 && newest_is(dir, 1, 1));
        }
        CHECK(at > (rank == 0 ? 25 : 6)); // two files joined, written to and synced by each
        // removing the old one is what may fail last, and costs nothing
        CHECK(newest_is(dir, 2, 2) && count_names(dir) == (rank == 0 ? 2 : 1));
        CHECK(io_remove_tree(step_2, NULL) && job_run(&first));
    }
}

static void save_and_be_killed(void *job) {
    job_run(job);
}

TEST(checkpoint_of_ranks_survives_a_kill_at_any_write) {
    const char *dir = test_tmpdir();
    OWNED(test_mem_end) char *step_2 = mem_printf("%s/step_00000002", dir);
    char text[256];
    Job first = {.what = SAVE, .config = TINY, .path = dir, .mesh = 5, .step = 1, .seed = 1};
    CHECK(job_run(&first));
    for (int rank = 0; rank < 4; rank += 3)
        for (int at = 1;; at++) {
            Job j = {.what = SAVE, .config = TINY, .path = dir, .mesh = 5, .step = 2, .seed = 2};
            j.fail_rank = rank, j.fail_at = at, j.kill = true, j.keep = 1;
            int status = test_in_child(save_and_be_killed, &j, text, sizeof text);
            if (status == 128 + 9 && !io_exists(step_2)) {
                CHECK(newest_is(dir, 1, 1));
                continue;
            }
            CHECK(newest_is(dir, 2, 2));
            CHECK(io_remove_tree(step_2, NULL) && job_run(&first));
            if (status == 0) break;
        }
    CHECK(count_names(dir) == 1); // every left-over was removed by a later save
}

/* ---- weights alone ---- */

TEST(weights_of_any_ranks_are_exported_alike) {
    char *file[2];
    for (int p = 0; p < N_MESHES; p++) { // and nothing of a failed one replaces what was there
        const char *dir = test_tmpdir();
        file[p > 0] = test_path("%s/model.safetensors", dir);
        Job j = {.what = EXPORT, .config = MIXED, .path = dir, .mesh = p, .seed = 3};
        CHECK(job_run(&j) && test_same_files(file[0], file[p > 0]) && count_names(dir) == 2);
        j.fail_rank = mesh_ranks(p) - 1, j.fail_at = 2, j.seed = 4;
        CHECK(!job_run(&j) && test_same_files(file[0], file[p > 0]) && count_names(dir) == 2);
        for (int r = 0; r < mesh_ranks(p); r++) CHECK(j.left[r] == 2);
    }
}

TEST(llmc_of_any_ranks_is_the_same_and_any_ranks_read_it) {
    char *path[N_MESHES];
    for (int p = 0; p < N_MESHES; p++) {
        path[p] = test_path("%s/model.bin", test_tmpdir());
        Job j = {.what = LLMC_SAVE, .config = GPT2, .path = path[p], .mesh = p, .seed = 3};
        j.cut = (unsigned)p;
        CHECK(job_run(&j) && test_same_files(path[0], path[p]));
    }
    for (int q = 0; q < N_MESHES; q++) {
        Job j = {.what = LLMC_LOAD, .config = GPT2, .path = path[N_MESHES - 1 - q], .mesh = q};
        j.seed = 3, j.cut = (unsigned)q + 1;
        CHECK(job_run(&j));
    }
}

TEST(weights_digest_is_that_of_the_logical_model) {
    OWNED(values_free) Values m = values_make(MIXED, 1, 0);
    for (int i = 0; i < m.t.n; i++)
        for (int64_t k = 0; k < tensor_size(&m.t.t[i]); k++) m.t.t[i].param[k] = value(i, 0, k, 9);
    uint64_t want = weights_digest(&m.t, &group_alone);
    for (int p = 0; p < N_MESHES; p++) {
        Job j = {.what = DIGEST, .config = MIXED, .mesh = p, .seed = 9, .cut = (unsigned)p};
        CHECK(job_run(&j));
        for (int r = 0; r < mesh_ranks(p); r++) CHECK(j.digest[r] == want);
        j.seed = 10;
        CHECK(job_run(&j) && j.digest[0] != want);
    }
}

static void swap(float *x, float *y, int64_t n) {
    for (float z; n-- > 0; x++, y++) z = *x, *x = *y, *y = z;
}

/* Change `i`, which a second call takes back: bits of a value, then places. */
static void change(Tensor *a, Tensor *b, int i) {
    float *x = a->param;
    uint32_t bits;
    if (i < 32) {
        memcpy(&bits, x, sizeof bits);
        bits ^= (uint32_t)1 << i;
        memcpy(x, &bits, sizeof bits);
    }
    if (i == 32) swap(x, x + 1, 1);
    if (i == 33) swap(x, x + a->cols, 1);
    if (i == 34) swap(x, b->param, tensor_size(a));
    if (i == 35) x[5] = -x[5]; // 0
}

TEST(weights_digest_changes_with_every_bit_and_place) {
    enum { N = 36 };
    OWNED(values_free) Values m = values_make(GPT2, 1, 7);
    Tensor *a = &m.t.t[tensors_find(&m.t, "h.0.up.weight")],
           *b = &m.t.t[tensors_find(&m.t, "h.1.up.weight")];
    a->param[5] = 0;
    uint64_t was = weights_digest(&m.t, &group_alone), now[N];
    for (int i = 0; i < N; i++) {
        change(a, b, i);
        now[i] = weights_digest(&m.t, &group_alone);
        change(a, b, i);
        for (int k = 0; k < i; k++) CHECK_SAYS(now[i] != now[k], "changes %d and %d", k, i);
        CHECK_SAYS(now[i] != was, "change %d", i);
        CHECK(weights_digest(&m.t, &group_alone) == was);
    }
}
