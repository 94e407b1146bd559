#include "data/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/checkpoint_parts.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/piece.h"
#include "data/safetensors.h"
#include "data/temporary.h"
#include "data/weights.h"

/* ---- saving ---- */

/* The folder under construction and the list of what it holds. */
typedef struct Build {
    char *dir;
    json_t *files;
    const TensorTable *t;
    const Group *g;
} Build;

static bool record(Build *b, const char *name, uint64_t n_bytes, uint32_t crc) {
    json_object_set_new(
        b->files, name,
        json_pack("{s:I,s:I}", "bytes", (json_int_t)n_bytes, "crc32c", (json_int_t)crc));
    return true;
}

static bool put_text(Build *b, const char *name, const void *text, size_t n, Err *e) {
    char *path = mem_printf("%s/%s", b->dir, name);
    uint32_t crc = 0;
    bool ok = io_write_file(path, text, n, &crc, e) && record(b, name, n, crc);
    mem_free(path);
    return ok;
}

static bool put_model(Build *b, Err *e) {
    char *path = mem_printf("%s/model.safetensors", b->dir);
    uint64_t n = 0;
    uint32_t crc = 0;
    bool ok = weights_save(path, b->t, "F32", b->g, &n, &crc, e) &&
              record(b, "model.safetensors", n, crc);
    mem_free(path);
    return ok;
}

/* What an optimizer remembers of a tensor: AdamW's moments, and the velocity of the outer loop
 * where there is one. False: no such state. */
enum { N_STATES = 3 };
static bool state_of(const Tensor *x, int k, char name[80], PieceHeld *h) {
    static const char *const names[N_STATES] = {"m", "v", "velocity"};
    float *const values[N_STATES] = {x->m, x->v, x->velocity};
    *h = (PieceHeld){.tensor = x, .part = k < 2 ? PART_MOMENTS : PART_PARAM, .values = values[k]};
    snprintf(name, 80, "%s.%s", names[k], x->name);
    return values[k] != NULL;
}

static bool put_states(const TensorTable *t, SafeWriter *w, Err *e) {
    char name[80];
    PieceHeld h;
    for (int k = 0, n = 0; k < N_STATES; k++)
        for (int i = 0; i < t->n && state_of(&t->t[i], k, name, &h); i++) {
            Piece p = piece_whole(&t->t[i], false);
            h.piece = &p;
            if (!piece_put(&h, &w->file, &w->list.t[n++], e)) return false;
        }
    return true;
}

static bool put_optimizer(Build *b, Err *e) {
    if (!b->t->t[0].m) return true;
    char *path = mem_printf("%s/optimizer.safetensors", b->dir);
    SafeTensors list = {0};
    SafeWriter w;
    for (int k = 0; k < N_STATES; k++)
        for (int i = 0; i < b->t->n; i++) {
            const Tensor *x = &b->t->t[i];
            char name[80];
            PieceHeld h;
            if (state_of(x, k, name, &h))
                safetensors_add(&list, name, "F32", 2, (int64_t[]){x->rows, x->cols});
        }
    uint64_t n = 0;
    uint32_t crc = 0;
    bool ok = safetensors_create(&w, path, &list, b->g, e);
    mem_free(path);
    return ok && safetensors_finish(&w, put_states(b->t, &w, e), &n, &crc, e) &&
           record(b, "optimizer.safetensors", n, crc);
}

static bool put_copies(Build *b, const char *const *files, Err *e) {
    for (; files && *files; files++) {
        const char *slash = strrchr(*files, '/'), *name = slash ? slash + 1 : *files;
        IoMap m;
        if (json_object_get(b->files, name))
            return err(e, "%s would replace the checkpoint's own", *files);
        if (!io_map(&m, *files, e)) return false;
        bool ok = put_text(b, name, m.p, m.n, e);
        io_unmap(&m);
        if (!ok) return false;
    }
    return true;
}

static bool is_object(const char *text) {
    json_t *x = json_loads(text, 0, NULL);
    bool ok = json_is_object(x);
    json_decref(x);
    return ok;
}

/* Puts the finished folder in its place; one that is there already changes places with it and goes.
 */
static bool put_in_place(const char *dir, const char *place, Err *e) {
    if (!io_exists(place)) return io_rename(dir, place, e);
    if (!io_exchange(dir, place, e)) return false;
    if (!io_remove_tree(dir, NULL)) warn("cannot remove %s", dir);
    return true;
}

/* Rank 0: an empty folder, and the model's description in it. */
static bool begin(Build *b, const char *save_dir, const char *state, Err *e) {
    if (!is_object(state)) return err(e, "the state handed to a checkpoint is no JSON object");
    if (!io_make_dirs(save_dir, e)) return false;
    temporary_clean(save_dir, ".step_", false);
    char *config = hf_config_text(&b->t->config), *ids = hf_generation_text(&b->t->config);
    bool ok = io_make_dir(b->dir, e) && put_text(b, "config.json", config, strlen(config), e) &&
              (!ids || put_text(b, "generation_config.json", ids, strlen(ids), e));
    mem_free(config);
    mem_free(ids);
    return ok;
}

/* Rank 0, when the tensors of all ranks are on the disk. */
static bool complete(Build *b, const char *place, int64_t step, const char *state,
                     const CheckpointOptions *o, Err *e) {
    if (!put_text(b, "train_state.json", state, strlen(state), e) ||
        !put_copies(b, o ? o->files : NULL, e))
        return false;
    char *manifest = manifest_print(step, &b->t->config, b->files);
    bool ok = put_text(b, CHECKPOINT_MANIFEST, manifest, strlen(manifest), e) &&
              io_sync_dir(b->dir, e) && put_in_place(b->dir, place, e);
    mem_free(manifest);
    return ok;
}

bool checkpoint_save(const char *save_dir, int64_t step, const TensorTable *t,
                     const char *state_json, const CheckpointOptions *o, const Group *g, Err *e) {
    bool first = g->rank == 0;
    char *name = first ? step_build_path(save_dir, step) : NULL, *place = step_path(save_dir, step);
    Build b = {group_share_text(g, name), json_object(), t, g};
    bool ok = group_agree(g, !first || begin(&b, save_dir, state_json, e), e) && put_model(&b, e) &&
              put_optimizer(&b, e) &&
              group_agree(g, !first || complete(&b, place, step, state_json, o, e), e);
    if (!ok && first) io_remove_tree(b.dir, NULL);
    ok = ok && group_agree(g, !first || io_sync_dir(save_dir, e), e);
    if (!ok) group_barrier(g); // nothing is left behind before any rank ends the program
    if (ok && first) steps_rotate(save_dir, step, o, b.dir);
    json_decref(b.files);
    mem_free(b.dir);
    mem_free(name);
    mem_free(place);
    return ok;
}

/* ---- loading ---- */

static bool check_same_model(const char *path, const Config *saved, const Config *ours, Err *e) {
    char a[64], b[64];
    return !config_difference(saved, ours, a, b) ||
           err(e, "%s is a checkpoint of another model: it has %s, this run %s", path, a, b);
}

/* A run without an outer loop leaves no velocity: it begins at zero, as this one does. */
static bool get_state(const SafeTensors *s, int k, const Tensor *x, Err *e) {
    char name[80];
    PieceHeld h;
    if (!state_of(x, k, name, &h) || (k == 2 && !safetensors_find(s, name))) return true;
    const SafeTensor *f = safetensors_find(s, name);
    if (!f || f->size != tensor_size(x) || strcmp(f->dtype, "F32") != 0)
        return err(e, "tensor %s [%lld, %lld] is missing or of another shape", name,
                   (long long)x->rows, (long long)x->cols);
    Piece p = piece_whole(x, false);
    h.piece = &p;
    piece_get(&h, f);
    return true;
}

static bool load_optimizer(const char *path, const TensorTable *t, Err *e) {
    if (!t->t[0].m) return true;
    char *file = mem_printf("%s/optimizer.safetensors", path);
    IoMap map = {0};
    SafeTensors s = {0};
    Err why;
    bool ok = io_map(&map, file, e);
    if (ok) {
        bool good = safetensors_parse(map.p, map.n, &s, &why);
        for (int i = 0; good && i < t->n * N_STATES; i++)
            good = get_state(&s, i % N_STATES, &t->t[i / N_STATES], &why);
        if (!good) ok = err(e, "%.250s: %.240s", file, why.text);
    }
    safetensors_free(&s);
    io_unmap(&map);
    mem_free(file);
    return ok;
}

char *checkpoint_state(const char *path, Err *e) {
    char *file = mem_printf("%s/train_state.json", path), *text = NULL;
    IoMap map;
    if (io_map(&map, file, e)) {
        text = mem_printf("%.*s", (int)map.n, (const char *)map.p);
        io_unmap(&map);
    }
    mem_free(file);
    return text;
}

static bool load_state(const char *path, char **state_json, Err *e) {
    return !state_json || (*state_json = checkpoint_state(path, e));
}

bool checkpoint_load(const char *path, const TensorTable *t, char **state_json, const Group *g,
                     Err *e) {
    Config saved;
    if (state_json) *state_json = NULL;
    json_t *m = manifest_share(path, g, e);
    bool ok = m &&
              group_agree(g,
                          manifest_config(path, m, &saved, e) &&
                              check_same_model(path, &saved, &t->config, e),
                          e) &&
              manifest_verify(path, m, g, e) && weights_load(path, t, g, e) &&
              group_agree(g, load_optimizer(path, t, e) && load_state(path, state_json, e), e);
    if (!ok && state_json) mem_free(*state_json), *state_json = NULL;
    json_decref(m);
    return ok;
}
