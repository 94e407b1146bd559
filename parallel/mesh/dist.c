#include "parallel/mesh/dist.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- text ---------------------------------------------------------------------------------- */

const char *dist_print(const Dist *d, char buf[DIST_TEXT]) {
    char axes[2 * N_AXES + 1];
    int n = snprintf(buf, DIST_TEXT, "%s[", d->name);
    for (int i = 0; i < d->n_dims; i++)
        n += snprintf(buf + n, (size_t)(DIST_TEXT - n), "%s%s%s%s", i ? ", " : "", d->dim[i],
                      d->shard[i].n ? "/" : "", axes_print(d->shard[i], axes));
    snprintf(buf + n, (size_t)(DIST_TEXT - n), "]%s%s", d->partial.n ? " +" : "",
             axes_print(d->partial, axes));
    return buf;
}

/* --- the type ------------------------------------------------------------------------------ */

Dist dist_make(const char *name, const char *dim0, Axes over0, const char *dim1, Axes over1) {
    Dist d = {.n_dims = dim1 ? 2 : 1, .shard = {over0, over1}};
    dist_name(d.name, name);
    memcpy(d.dim[0], dim0, strlen(dim0) + 1); // a few letters
    if (dim1) memcpy(d.dim[1], dim1, strlen(dim1) + 1);
    return d;
}

static bool same_shape(const Dist *a, const Dist *b) {
    if (a->n_dims != b->n_dims) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (strcmp(a->dim[i], b->dim[i]) != 0) return false;
    return true;
}

bool dist_equal(const Dist *a, const Dist *b) {
    if (!same_shape(a, b)) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (!axes_equal(a->shard[i], b->shard[i])) return false;
    return axes_equal(a->partial, b->partial);
}

/* Rule 2: no axis appears twice. */
static bool dist_check(const Dist *d, Err *e) {
    char text[DIST_TEXT], letter[2 * N_AXES + 1];
    int n[N_AXES] = {0};
    for (int i = 0; i <= d->n_dims; i++) {
        const Axes *a = i < d->n_dims ? &d->shard[i] : &d->partial;
        for (int k = 0; k < a->n; k++)
            if (n[a->axis[k]]++)
                return err(e, "%s: axis %s given twice: an axis shards one dimension or is partial",
                           dist_print(d, text), axes_print((Axes){1, {a->axis[k]}}, letter));
    }
    return true;
}

void dist_name(char to[DIST_NAME], const char *name) {
    dist_join(to, name, "");
}

void dist_join(char to[DIST_NAME], const char *a, const char *b) {
    size_t n = strnlen(a, DIST_NAME - 1), more = strnlen(b, DIST_NAME - 1 - n);
    memcpy(to, a, n);
    memcpy(to + n, b, more);
    to[n + more] = 0;
}

void dist_beside(char to[DIST_NAME], const char *other, const char *name) {
    char prefix[DIST_NAME];
    dist_name(prefix, other);
    char *dot = strchr(prefix, '.');
    assert(dot);
    dot[1] = 0;
    dist_join(to, prefix, name);
}

bool dist_matmul(Dist *y, const char *name, const Dist *x, const Dist *w, Err *e) {
    char tx[DIST_TEXT], tw[DIST_TEXT], why[DIST_TEXT] = "";
    if (x->n_dims != 2 || w->n_dims != 2)
        snprintf(why, sizeof why, "a matmul takes two matrices");
    else if (x->partial.n || w->partial.n)
        snprintf(why, sizeof why, "an operand is partial; reduce it before the matmul");
    else if (strcmp(x->dim[1], w->dim[0]) != 0)
        snprintf(why, sizeof why, "a matmul contracts equal dimensions, not %s and %s", x->dim[1],
                 w->dim[0]);
    else if (!axes_equal(x->shard[1], w->shard[0]))
        snprintf(why, sizeof why, "both operands must shard %s alike", x->dim[1]);
    if (why[0]) return err(e, "%s %s: %s", dist_print(x, tx), dist_print(w, tw), why);
    *y = (Dist){.n_dims = 2, .shard = {x->shard[0], w->shard[1]}, .partial = x->shard[1]};
    dist_name(y->name, name);
    memcpy(y->dim[0], x->dim[0], sizeof y->dim[0]);
    memcpy(y->dim[1], w->dim[1], sizeof y->dim[1]);
    return dist_check(y, e);
}

Dist dist_transposed(const Dist *x) {
    assert(x->n_dims == 2);
    Dist t = *x;
    size_t n = strlen(t.name);
    if (n && t.name[n - 1] == '\'') // (x')' = x
        t.name[n - 1] = 0;
    else
        dist_join(t.name, x->name, "'");
    for (int i = 0; i < 2; i++) {
        t.shard[i] = x->shard[1 - i];
        memcpy(t.dim[i], x->dim[1 - i], sizeof t.dim[i]);
    }
    return t;
}

/* --- changes ------------------------------------------------------------------------------- */

/* Applies one collective along one axis to the type `now`, and describes the collective in *c.
 * Returns true. */
static bool apply_change(Dist *now, Change *c, ChangeKind kind, int axis, int dim) {
    Axes one = {1, {(uint8_t)axis}};
    now->partial = axes_without(now->partial, one);
    if (kind == CHANGE_GATHER) now->shard[dim].n--;
    if (kind == CHANGE_SCATTER) now->shard[dim] = axes_join(now->shard[dim], one);
    *c = (Change){kind, axis, dim, *now};
    return true;
}

/* Applies the next collective towards `to`; false: none is left. Collectives that shrink the block
 * come first (scatter), then those that keep its size (reduce), then those that grow it (gather,
 * innermost axis first): this order moves the fewest bytes. */
static bool next_change(Dist *now, const Dist *to, Change *c) {
    for (int i = 0; i < now->n_dims; i++) {
        const Axes *own = &now->shard[i], *all = &to->shard[i];
        if (own->n < all->n && axes_has(now->partial, all->axis[own->n]))
            return apply_change(now, c, CHANGE_SCATTER, all->axis[own->n], i);
    }
    for (int i = 0; i < now->partial.n; i++) {
        int axis = now->partial.axis[i];
        if (!axes_has(to->partial, axis)) return apply_change(now, c, CHANGE_REDUCE, axis, -1);
    }
    for (int i = 0; i < now->n_dims; i++) {
        const Axes *own = &now->shard[i];
        if (own->n > to->shard[i].n)
            return apply_change(now, c, CHANGE_GATHER, own->axis[own->n - 1], i);
    }
    return false;
}

int dist_path(const Dist *from, const Dist *to, Change path[MAX_CHANGES], Err *e) {
    char a[DIST_TEXT], b[DIST_TEXT];
    Dist now = *from;
    int n = 0;
    if (!dist_check(from, e) || !dist_check(to, e)) return -1;
    while (n < MAX_CHANGES && next_change(&now, to, &path[n])) n++;
    if (dist_equal(&now, to)) return n;
    err(e, "%s -> %s: no collectives make this change", dist_print(from, a), dist_print(to, b));
    return -1;
}
