/* parallel/step/audit: a bit that flips in one of several replicas is found, and whose it is. */
#include "parallel/step/audit.h"

#include "tests/mesh_run.h"
#include "tests/shell.h"

static const char model[] = "layers=2,heads=8,kv_heads=2,channels=32,ffn=22,seq=5,vocab=29";

typedef struct Flip {
    const char *tensor; // NULL: none
    int rank;
    char part; // p, m, v; a and o: anchor and velocity of the outer loop
    Outer outer;
    int64_t element; // of the logical tensor
    int step;
    int alarms[MESH_STEPS]; // ranks that see a difference, by step
    char said[512];         // what rank 0 was told first
} Flip;

/* Turns the lowest bit of one logical element where this rank stores it. */
static void flip_bit(const Model *m, const Flip *f) {
    const Tensor *t = &m->tensors.t[tensors_find(&m->tensors, f->tensor)];
    float *values = f->part == 'p'   ? t->param
                    : f->part == 'm' ? t->m
                    : f->part == 'v' ? t->v
                    : f->part == 'o' ? t->velocity
                                     : m->anchor + (t->param - m->tensors.t[0].param);
    bool moments = f->part == 'm' || f->part == 'v';
    TensorRun r;
    for (TensorRuns it = tensor_runs(t, moments ? PART_MOMENTS : PART_PARAM, false);
         tensor_next(&it, &r);) {
        int64_t at = f->element - (r.row * t->cols + r.col);
        if (at >= 0 && at < r.n) ((unsigned char *)(values + r.offset + at))[0] ^= 1;
    }
}

static void after(Model *m, int step, void *ctx) {
    Flip *f = ctx;
    Err e = {{0}};
    if (f->tensor && step == f->step && m->grid->mesh.rank == f->rank) flip_bit(m, f);
    if (audit_replicas(m, &e)) return;
    __atomic_add_fetch(&f->alarms[step], 1, __ATOMIC_RELAXED);
    if (m->grid->mesh.rank == 0 && !f->said[0]) snprintf(f->said, sizeof f->said, "%s", e.text);
}

static Flip run(const char *layout, Flip f) {
    OWNED(mesh_run_free)
    MeshRun r = {
        .model = model, .layout = layout, .sequences = 5, .S = 4, .after = after, .ctx = &f};
    r.outer = f.outer;
    mesh_run(&r);
    return f;
}

static void check_quiet(const char *spec, Outer outer) {
    Flip f = run(spec, (Flip){.outer = outer});
    for (int i = 0; i < MESH_STEPS; i++)
        if (f.alarms[i]) test_fail("%s: %s", spec, f.said);
}

TEST(audit_is_quiet_while_replicas_agree) {
    for (EACH_LAYOUT(l, 1, 6)) check_quiet(l.spec, (Outer){0});
}

TEST(audit_is_quiet_while_replicas_train_apart) {
    for (int p = 2; p <= 6; p += 2)
        for (EACH_LAYOUT(l, p, p)) // zero shards the state of one model over d
            if (!strstr(l.spec, "zero")) check_quiet(l.spec, (Outer){2, 2, 0.7f, 0.9f, 0});
}

TEST(audit_names_tensor_and_ranks_of_a_flipped_bit) {
    static const struct {
        const char *layout;
        int ranks;
        const char *says;
        Flip flip;
    } rows[] = {
        // the first element of all
        {"dp:3",
         3,
         "weights of wte differ between replicas: rank 0 from rank 1, 2",
         {"wte", 0, .part = 'p'}},
        {"megatron:4",
         4,
         "first moments of h.0.ln1.weight differ between replicas: rank 1 from rank 0, 2, 3",
         {"h.0.ln1.weight", 1, 'm', .element = 31}},
        // columns 32 to 35 and 36 to 39 are two key heads; four ranks hold each of them twice
        {"megatron:4",
         4,
         "second moments of h.1.qkv.weight differ between replicas: rank 3 from rank 2",
         {"h.1.qkv.weight", 3, 'v', .element = 37}},
        // cut over x, stored in parts over z: only d has replicas, ranks 0 and 4 of this element
        {"d2.z2.x2",
         8,
         "weights of h.0.down.weight differ between replicas: rank 4 from rank 0",
         {"h.0.down.weight", 4, .part = 'p'}},
        // apart: what one replica holds twice, and what all share
        {"d2.x2",
         4,
         "weights of h.0.ln1.weight differ between replicas: rank 3 from rank 2",
         {"h.0.ln1.weight", 3, 'p', {9, 1, 1, 0, 0}, .element = 5}},
        {"d3",
         3,
         "anchor of h.1.up.weight differ between replicas: rank 1 from rank 0, 2",
         {"h.1.up.weight", 1, 'a', {9, 1, 1, 0, 0}, .element = 5}},
        {"d3",
         3,
         "velocity of lnf.bias differ between replicas: rank 1 from rank 0, 2",
         {"lnf.bias", 1, 'o', {2, 1, 1, 0.5f, 0}, .element = 5}},
    };
    for (EACH(r, rows)) {
        Flip f = r->flip;
        f.step = 2;
        f = run(r->layout, f);
        CHECK_STR(f.said, r->says);
        CHECK(f.alarms[0] + f.alarms[1] == 0);
        CHECK(f.alarms[2] == r->ranks);
    }
}

TEST(audit_says_a_line_when_all_is_well) {
    SHELL_IN(test_tmpdir(), 0, "",
             "export XDG_CACHE_HOME=$PWD; seq 500 >t.txt && $BUILD/tokenize encode --text t.txt "
             "--out t && $BUILD/train_gpt --train t_train.bin --model "
             "layers=1,heads=2,channels=8,seq=16,vocab=257 --micro 2 --steps 4 --eval-every 0 "
             "--ranks 2 --layout d2 --audit-every 3"); // and after the last step
    CHECK_SAYS(test_count(said, ": audit: all replicas are equal\n") == 2, "%s", said);
}
