#include "parallel/step/listing.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

static const char *const phases[N_PHASES] = {"forw", "reco", "back", "sums", "end "};

enum {
    OPERANDS_TEXT = 160,
    NAME_TEXT = 48,
    AMOUNT_TEXT = 32,
    OPERAND_TEXT = DIST_NAME + AMOUNT_TEXT + 12, // and the number of a line
    RESULT_TEXT = DIST_TEXT + AMOUNT_TEXT + 8
};

typedef struct Listing {
    const Program *p;
    const OpCost *costs;
    const OpTime *time;
    int *at;        // [n] the operation of each line; waits have no line
    int *line;      // [operations] number of its line
    int *maker;     // [tensors] the last operation that writes it or a part of it; -1: a parameter
    int n;          // lines
    bool *left_out; // [operations] its line is left out: one layer stands for all. NULL: none is
} Listing;

/* ---- the parts of a line ---- */

static Listing listing_make(const Listed *list) {
    const Program *p = &list->p;
    size_t n = (size_t)p->n_ops;
    int *memory = mem_alloc((2 * n + (size_t)p->n_tensors) * sizeof *memory);
    Listing l = {p, list->costs, list->time, memory, memory + n, memory + 2 * n, 0, NULL};
    for (int t = 0; t < p->n_tensors; t++) l.maker[t] = -1;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->op[i].kind == OP_WAIT) continue;
        l.maker[p->op[i].out] = i;
        if (p->op[i].out2 >= 0) l.maker[p->op[i].out2] = i;
        if (p->tensor[p->op[i].out].parent >= 0) l.maker[p->tensor[p->op[i].out].parent] = i;
        l.line[i] = l.n, l.at[l.n++] = i;
    }
    return l;
}

void listed_free(Listed *list) {
    mem_free(list->costs), mem_free(list->time);
    program_free(&list->p);
}

/* Name, axes and root of an operation: "reduce_scatter x". An activation has the name of its
 * function. */
static const char *operation(const Program *p, const Op *op, char text[NAME_TEXT]) {
    char axes[2 * N_AXES + 1], root[16] = "", name[32], act[16];
    config_act_name(p->shape->config.act, act);
    snprintf(name, sizeof name, "%s", op_info(op->kind)->name);
    if (op->kind == OP_ACT) snprintf(name, sizeof name, "%s", act);
    if (op->kind == OP_ACT_BACKWARD) snprintf(name, sizeof name, "%s_backward", act);
    if (op->root >= 0) snprintf(root, sizeof root, "[%d]", op->root);
    snprintf(text, NAME_TEXT, "%s%s%s%s", name, op->axes.n ? " " : "",
             op->axes.n ? axes_print(op->axes, axes) : "", root);
    return text;
}

/* The offset of a tensor in its parent: "@512" is the first row, "@0,64" first row and column. */
static const char *place(const StepTensor *x, char text[AMOUNT_TEXT]) {
    int n = snprintf(text, AMOUNT_TEXT, "@%lld", (long long)x->row);
    if (x->column || (x->stride && x->parent >= 0)) // without a parent, rows are padded
        snprintf(text + n, (size_t)(AMOUNT_TEXT - n), ",%lld", (long long)x->column);
    return text;
}

/* An operand: "%7", the result of line 7, "%7'" its second one, with its name if that line is left
 * out; or the name of a parameter, "qkv.weight". */
static const char *operand(const Listing *l, int t, char text[OPERAND_TEXT]) {
    const StepTensor *x = &l->p->tensor[t];
    char at[AMOUNT_TEXT] = "";
    int letters = DIST_NAME; // of a moment only the first, m or v: its weight is beside it
    if (x->storage == STORAGE_MOMENT || x->storage == STORAGE_SECOND_MOMENT) letters = 1;
    bool part = l->maker[t] < 0 && x->parent >= 0;
    int maker = part ? l->maker[x->parent] : l->maker[t];
    if (part) place(x, at);
    if (maker >= 0 && l->p->op[maker].out2 == t) strcpy(at, "'");
    if (maker < 0)
        snprintf(text, OPERAND_TEXT, "%.*s%s", letters, x->dist.name, at);
    else if (l->left_out && l->left_out[maker])
        snprintf(text, OPERAND_TEXT, "%%%d%s %s", l->line[maker], at, x->dist.name);
    else
        snprintf(text, OPERAND_TEXT, "%%%d%s", l->line[maker], at);
    return text;
}

/* The dtype of a tensor, if it is wider than activations. */
static const char *wide(const Program *p, const StepTensor *x) {
    if (x->dtype == p->dtype) return "";
    return x->dtype == COLL_F64 ? " f64" : x->dtype == COLL_I64 ? " i64" : " f32";
}

/* A result with its type: "qkv[T, N/x]". A part of a parent, or a chunk of tokens, has its offset:
 * "qkv[T, N/x] @512". Elements of 8 bytes have their dtype: "qkv[T, N/x] i64", or f64. So have
 * those of 4 bytes beside bf16: f32. */
static const char *result(const Listing *l, int t, char text[RESULT_TEXT]) {
    const StepTensor *x = &l->p->tensor[t];
    char type[DIST_TEXT], at[AMOUNT_TEXT] = "";
    bool part = x->parent >= 0 || x->row > 0;
    snprintf(text, RESULT_TEXT, "%s%s%s%s", dist_print(&x->dist, type), wide(l->p, x),
             part ? " " : "", part ? place(x, at) : "");
    return text;
}

/* Finds the lines [*first, *last] of kernels that run while collective i is in flight. */
static bool runs_under(const Listing *l, int i, int *first, int *last) {
    const OpTime *c = &l->time[i];
    *first = -1;
    for (int k = 0; k < l->n; k++) {
        const OpTime *t = &l->time[l->at[k]];
        bool beside = l->costs[l->at[k]].level < 0 && t->start < c->end && t->end > c->start;
        if (beside && t->end > t->start) *first = *first < 0 ? k : *first, *last = k;
    }
    return *first >= 0;
}

/* ---- text ---- */

/* "75.50 MFLOP". */
static const char *amount(double n, const char *unit, char text[AMOUNT_TEXT]) {
    static const char *const prefixes[] = {"", "K", "M", "G", "T"};
    int i = 0;
    for (; n >= 1000 && i < 4; i++) n /= 1000;
    snprintf(text, AMOUNT_TEXT, "%.2f %s%s", n, prefixes[i], unit);
    return text;
}

/* Widths of columns: operands; amount. Operands that are too long take width from the amount. */
enum { OPERANDS_COLUMN = 28, AMOUNT_COLUMN = 14 };

static void print_cost(FILE *f, const Listing *l, int i, int operands) {
    const Op *op = &l->p->op[i];
    double bytes = (double)op_bytes(l->p, op), flops = op_flops(l->p, op);
    char text[AMOUNT_TEXT] = "";
    if (bytes > 0) amount(bytes, "B", text);
    if (flops > 0) amount(flops, "FLOP", text);
    if (!l->costs || (op->fused && !op_begins_kernel(l->p, i) && !op_in_kernel(l->p, i))) {
        fprintf(f, "%s", text);
        return;
    }
    int over = operands > OPERANDS_COLUMN ? operands - OPERANDS_COLUMN : 0;
    fprintf(f, "%-*s", (int)max_i64(AMOUNT_COLUMN - over, (int64_t)strlen(text) + 1), text);
    if (!l->time) {
        fprintf(f, "%9.4f ms", 1e3 * l->costs[i].seconds);
        return;
    }
    const OpTime *t = &l->time[i];
    int first, last;
    fprintf(f, "%9.4f +%.4f ms", 1e3 * t->start, 1e3 * (t->end - t->start));
    if (l->costs[i].level >= 0 && runs_under(l, i, &first, &last))
        fprintf(f, first < last ? "  under %%%d-%%%d" : "  under %%%d", first, last);
    if (t->waited > 0 && t->awaited >= 0)
        fprintf(f, "  waited %.4f for %%%d", 1e3 * t->waited, l->line[t->awaited]);
}

static char mark_of(const Program *p, int i) {
    return op_in_kernel(p, i)                   ? '&'
           : op_info(p->op[i].kind)->collective ? '~'
           : p->op[i].fused                     ? '+'
                                                : ' ';
}

static void print_line(FILE *f, const Listing *l, int i) {
    const Op *op = &l->p->op[i];
    char type[RESULT_TEXT], name[NAME_TEXT], operands[OPERANDS_TEXT] = "", one[OPERAND_TEXT];
    for (int k = 0, n = 0; k < op->n_in && n < OPERANDS_TEXT; k++) {
        const char *before = k == 0 ? "" : k == op_operands(op) ? " after " : ", ";
        n += snprintf(operands + n, (size_t)(OPERANDS_TEXT - n), "%s%s", before,
                      operand(l, op->in[k], one));
    }
    fprintf(f, "%4d %s %c %-34s = %-20s %-*s ", l->line[i], phases[op->phase], mark_of(l->p, i),
            result(l, op->out, type), operation(l->p, op, name), OPERANDS_COLUMN, operands);
    print_cost(f, l, i, (int)strlen(operands));
    fprintf(f, "\n");
}

/* Is operation i of the layer that stands for all, in its direction of the walk? */
static bool stands_for_all(const Program *p, const Op *op) {
    int64_t last = p->shape->config.layers - 1;
    bool up = op->phase == PHASE_FORWARD || op->phase == PHASE_END;
    return op->layer < 0 || op->layer == (up ? 0 : last);
}

/* Is line k folded? Lines of layers that are not shown are. In a scheduled list collectives of
 * other layers stand between kernels of the layer that is shown: such a line is folded only if the
 * line before it is. At the end of a step one kernel may handle all layers. */
static bool folded(const Listing *l, int k, bool before) {
    const Op *op = &l->p->op[l->at[k]];
    bool begins = !op->fused || op->phase == PHASE_END;
    bool decides = begins && (!l->time || l->costs[l->at[k]].level < 0);
    return !stands_for_all(l->p, op) && (decides || before);
}

static void print_fold(FILE *f, const Program *p, const Op *first, int n) {
    int layers = (int)p->shape->config.layers;
    int from = first->phase == PHASE_FORWARD || first->phase == PHASE_END ? 1 : 0;
    fprintf(f, "     ... %d operation%s of layer%s %d", n, n == 1 ? "" : "s", layers > 2 ? "s" : "",
            from);
    fprintf(f, layers > 2 ? "-%d\n" : "\n", from + layers - 2);
}

static bool has_phase(const Program *p, Phase phase) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].phase == phase) return true;
    return false;
}

static void print_heading(FILE *f, const Program *p) {
    char layout[64], overlap[OVERLAP_TEXT];
    const char *of = p->phase == PHASE_END ? "the end of a step" : "forward pass of a micro-batch";
    if (has_phase(p, PHASE_BACKWARD)) of = "a micro-batch";
    fprintf(f, "%s on rank %d of %d, layout %s, overlap %s\n", of, p->mesh->rank, p->mesh->p,
            layout_print(p->layout, layout), overlap_print(&p->shape->overlap, overlap));
}

static void print_total(FILE *f, const Listing *l, const Listed *list) {
    double bytes = 0, flops = 0;
    for (int i = 0; i < l->p->n_ops; i++) {
        bytes += (double)op_bytes(l->p, &l->p->op[i]);
        flops += op_flops(l->p, &l->p->op[i]);
    }
    char flops_text[AMOUNT_TEXT], bytes_text[AMOUNT_TEXT];
    fprintf(f, "%d operations of this rank, %s, %s received\n", l->n,
            amount(flops, "FLOP", flops_text), amount(bytes, "B", bytes_text));
    if (l->costs)
        fprintf(f, "predicted for %d rank%s on %s", l->p->mesh->p, l->p->mesh->p == 1 ? "" : "s",
                list->machine);
    if (l->time)
        fprintf(f, ": %.4f ms, %.4f computing, %.4f waiting for collectives%s",
                1e3 * (list->spent.compute + list->spent.exposed), 1e3 * list->spent.compute,
                1e3 * list->spent.exposed,
                has_phase(l->p, PHASE_SUMS) ? "; of the last micro-batch of a step" : "");
    if (l->costs) fprintf(f, "\n");
}

static void explain(FILE *f, bool found, const char *sign, const char *meaning) {
    if (found) fprintf(f, "  %-9s  %s\n", sign, meaning);
}

/* Explains the marks that occur in the list. */
static void print_marks(FILE *f, const Listing *l) {
    const Program *p = l->p;
    bool mark[128] = {false}, rows = false, waits = false, kind[N_OP_KINDS] = {false};
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        mark[(int)mark_of(p, i)] = kind[op->kind] = true;
        rows |= p->tensor[op->out].parent >= 0 || p->tensor[op->out].row > 0;
        waits |= op_operands(op) < op->n_in;
    }
    explain(f, has_phase(p, PHASE_RECOMPUTE), "reco",
            "computed or gathered again for backward: not kept from forward");
    explain(f, has_phase(p, PHASE_SUMS), "sums",
            "in the last micro-batch of a step alone: gradients become complete");
    explain(f, true, "%7", "the result of line 7; %7': its second result");
    explain(f, rows, "@64", "rows of a tensor, from row 64 on; @64,32: and from column 32 on");
    explain(f, mark['~'], "~", "a collective");
    explain(f, mark['&'], "&", "a collective in the kernel of its matmul");
    explain(f, mark['+'], "+", "in the kernel of the line before");
    explain(f, waits, "after", "the operation that makes this has to have run before");
    explain(f, kind[OP_MATMUL_BT], "matmul_bt",
            "times the transpose of the second operand: dgrad; the head");
    explain(f, kind[OP_MATMUL_AT], "matmul_at",
            "the transpose of the first operand times the second: wgrad");
    explain(f, mark['~'], "1.5 MB", "received by this rank; FLOP are those of this rank, too");
    explain(f, l->time != NULL, "4.5 +0.3", "starts 4.5 ms behind the first line, takes 0.3 ms");
    explain(f, l->time && mark['~'], "under", "this collective is under way while those lines run");
    explain(f, l->time && mark['~'], "waited",
            "so many ms, before it, for the collective of that line");
}

/* Explains the notation of types that occur in the list. */
static void print_types(FILE *f, const Program *p) {
    bool sharded = false, sum = false, integers = false, doubles = false, singles = false;
    for (int i = 0; i < p->n_ops; i++) {
        const StepTensor *x = &p->tensor[p->op[i].out];
        for (int n = 0; n < x->dist.n_dims; n++) sharded |= x->dist.shard[n].n > 0;
        sum |= x->dist.partial.n > 0;
        integers |= x->dtype == COLL_I64, doubles |= x->dtype == COLL_F64;
        singles |= x->dtype == COLL_F32 && p->dtype != COLL_F32;
    }
    explain(f, sharded, "[T/x]", "sharded: this rank has one block of T, of those along axis x");
    explain(f, sum, "[T] +x", "partial: the sum over the ranks along axis x is pending");
    explain(f, integers, "i64", "a sum as an integer of 64 bits (--exact)");
    explain(f, singles, "f32", "single precision; what has no mark is bf16");
    explain(f, doubles, "f64", "double precision");
}

/* Explains the dimensions that occur in the list. */
static void print_dimensions(FILE *f, const Program *p) {
    static const char *const meaning[][2] = {
        {"T", "tokens"},
        {"C", "channels of the residual stream"},
        {"N", "outputs of a column-parallel layer"},
        {"K", "inputs of a row-parallel layer"},
        {"V", "vocabulary"},
        {"H", "heads"},
        {"S", "positions"},
        {"2Y", "mean and sum of squared deviations, of the features of each rank along y"},
        {"3V",
         "largest logit, sum of exponentials, target's logit, of each block of the vocabulary"},
        {"2P", "mean and sum of squared deviations, or sums of dnorm, of each panel of features"},
        {"3P",
         "largest logit, sum of exponentials, target's logit, of each panel of the vocabulary"},
        {"2D", "a weight for each element of a query head and of a key head (QK-norm)"},
        {"G", "all gradients of a bucket"},
        {"W", "high and low part of an integer sum (--exact)"}};
    for (size_t k = 0; k < sizeof meaning / sizeof *meaning; k++) {
        int64_t size = 0; // of the whole dimension, with padding; -1: it has several sizes
        for (int i = 0; i < p->n_ops; i++) {
            const StepTensor *x = &p->tensor[p->op[i].out];
            for (int n = 0; n < x->dist.n_dims; n++)
                if (strcmp(x->dist.dim[n], meaning[k][0]) == 0)
                    size = size == 0 || size == x->size[n] ? x->size[n] : -1;
        }
        if (size > 0)
            fprintf(f, "  %-9s  %s: %lld\n", meaning[k][0], meaning[k][1], (long long)size);
        explain(f, size < 0, meaning[k][0], meaning[k][1]);
    }
}

void listing_print(FILE *f, const Listed *list) {
    Listing l = listing_make(list);
    bool *left_out = l.left_out = mem_calloc((size_t)l.p->n_ops + 1, sizeof *left_out);
    for (int k = 0; k < l.n; k++) left_out[l.at[k]] = folded(&l, k, k > 0 && left_out[l.at[k - 1]]);
    print_heading(f, l.p);
    for (int k = 0, next; k < l.n; k = next) {
        next = k + 1;
        if (left_out[l.at[k]]) {
            while (next < l.n && left_out[l.at[next]]) next++;
            print_fold(f, l.p, &l.p->op[l.at[k]], next - k);
        } else {
            print_line(f, &l, l.at[k]);
        }
    }
    print_total(f, &l, list);
    print_marks(f, &l);
    print_types(f, l.p);
    print_dimensions(f, l.p);
    mem_free(l.at), mem_free(l.left_out);
}

const char *listing_result(const Program *p, const Op *op, int tensor, char *text, size_t size) {
    char layer[AMOUNT_TEXT] = "", axes[2 * N_AXES + 1];
    if (op->layer >= 0) snprintf(layer, sizeof layer, " of layer %d", op->layer);
    size_t n = (size_t)snprintf(text, size, "%s%s (%s", p->tensor[tensor].dist.name, layer,
                                op_info(op->kind)->name);
    if (op_info(op->kind)->collective && n < size) {
        snprintf(text + n, size - n, " over %s)", axes_print(op->axes, axes));
        return text;
    }
    for (int k = 0; k < op->n_in && n < size; k++)
        n += (size_t)snprintf(text + n, size - n, "%s %s", k ? "," : "",
                              p->tensor[op->in[k]].dist.name);
    if (n < size) snprintf(text + n, size - n, ")");
    return text;
}

/* ---- JSON ---- */

static json_t *json_operation(const Listing *l, int k) {
    int i = l->at[k], first, last;
    const Op *op = &l->p->op[i];
    char type[RESULT_TEXT], name[NAME_TEXT], one[OPERAND_TEXT];
    json_t *operands = json_array();
    for (int j = 0; j < op->n_in; j++)
        json_array_append_new(operands, json_string(operand(l, op->in[j], one)));
    json_t *o =
        json_pack("{s:i, s:s, s:i, s:s, s:s, s:o, s:b, s:I, s:f}", "n", k, "phase",
                  phases[op->phase], "layer", op->layer, "result", result(l, op->out, type),
                  "operation", operation(l->p, op, name), "operands", operands, "fused", op->fused,
                  "bytes", (json_int_t)op_bytes(l->p, op), "flops", op_flops(l->p, op));
    if (!l->costs) return o;
    json_object_set_new(o, "ms", json_real(1e3 * l->costs[i].seconds));
    if (!l->time) return o;
    json_object_set_new(o, "start_ms", json_real(1e3 * l->time[i].start));
    json_object_set_new(o, "waited_ms", json_real(1e3 * l->time[i].waited));
    if (l->costs[i].level >= 0 && runs_under(l, i, &first, &last))
        json_object_set_new(o, "under", json_pack("[i, i]", first, last));
    return o;
}

static json_t *json_list(const Listed *list) {
    Listing l = listing_make(list);
    json_t *operations = json_array();
    for (int k = 0; k < l.n; k++) json_array_append_new(operations, json_operation(&l, k));
    json_t *all = json_pack("{s:o}", "operations", operations);
    double seconds = list->spent.compute + list->spent.exposed;
    if (l.time) json_object_set_new(all, "predicted_ms", json_real(1e3 * seconds));
    mem_free(l.at);
    return all;
}

void listing_json(FILE *f, const Listed *micro_batch, const Listed *end) {
    json_t *all = json_list(micro_batch);
    if (end->p.n_ops) json_object_set_new(all, "end", json_list(end));
    json_dumpf(all, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fprintf(f, "\n");
    json_decref(all);
}
