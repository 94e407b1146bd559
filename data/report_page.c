#include "data/report_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/utf8.h"
#include "data/chart.h"
#include "data/progress.h"
#include "data/stamp.h"

enum { COLOURS = 6, MOST_SAMPLES = 12 };

/* --- reading --- */

/* Appends a point. Points at or after x are removed first: when a step occurs again, the later line
 * wins. */
static void curve_add(Curve *c, double x, double y) {
    while (c->n > 0 && c->x[c->n - 1] >= x) c->n--;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 256;
        c->x = mem_realloc(c->x, c->cap, sizeof *c->x);
        c->y = mem_realloc(c->y, c->cap, sizeof *c->y);
    }
    c->x[c->n] = x, c->y[c->n++] = y;
}

/* Appends the value of a key, if the line has it. null stands for a value that was not finite. */
static void take(Curve *c, const json_t *o, const char *key, double step) {
    const json_t *x = json_object_get(o, key);
    if (json_is_number(x))
        curve_add(c, step, json_number_value(x));
    else if (json_is_null(x))
        curve_add(c, step, NAN);
}

static void take_sample(ReportRun *r, int64_t step, const char *text) {
    while (r->n_samples > 0 && r->samples[r->n_samples - 1].step >= step)
        mem_free(r->samples[--r->n_samples].text);
    r->samples = mem_realloc(r->samples, r->n_samples + 1, sizeof *r->samples);
    r->samples[r->n_samples++] = (ReportSample){step, mem_strdup(text)};
}

/* Adds one JSON line to the run: a header, a step, an evaluation or a sample. */
static void take_line(ReportRun *r, json_t *o) {
    json_t *header = json_object_get(o, "run");
    if (json_is_object(header)) {
        json_decref(r->header);
        r->header = json_incref(header);
    }
    const json_t *number = json_object_get(o, "step");
    if (!json_is_integer(number)) return;
    int64_t step = json_integer_value(number);
    double x = (double)step;
    take(&r->loss, o, "loss", x), take(&r->norm, o, "norm", x), take(&r->lr, o, "lr", x);
    take(&r->ms, o, "ms", x), take(&r->speed, o, "tokens_per_s", x), take(&r->peak, o, "peak", x);
    take(&r->val, o, "val_loss", x), take(&r->hellaswag, o, "hellaswag", x);
    const char *sample = json_string_value(json_object_get(o, "sample"));
    if (sample) take_sample(r, step, sample);
    if (json_object_get(o, "loss")) {
        r->steps = step;
        if (json_is_integer(json_object_get(o, "tokens")))
            r->tokens = json_integer_value(json_object_get(o, "tokens"));
        if (json_is_true(json_object_get(o, "skipped"))) r->skipped++;
    }
}

void report_read(ReportRun *r, const char *path, const char *p, size_t n) {
    *r = (ReportRun){.name = utf8_clean(path_name(path))};
    char *dot = strrchr(r->name, '.');
    if (dot && dot != r->name) *dot = 0;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(p + at, '\n', n - at);
        size_t len = newline ? (size_t)(newline - (p + at)) : n - at;
        json_t *o = len > 0 ? json_loadb(p + at, len, 0, NULL) : NULL;
        if (json_is_object(o)) take_line(r, o);
        if (len > 0) r->lines++, r->bad_lines += !json_is_object(o);
        json_decref(o);
        at += len + 1;
    }
}

void report_free(ReportRun *r) {
    Curve *curves[] = {&r->loss,  &r->norm, &r->lr,  &r->ms,
                       &r->speed, &r->peak, &r->val, &r->hellaswag};
    for (size_t i = 0; i < sizeof curves / sizeof curves[0]; i++)
        mem_free(curves[i]->x), mem_free(curves[i]->y);
    for (size_t i = 0; i < r->n_samples; i++) mem_free(r->samples[i].text);
    mem_free(r->samples), mem_free(r->name);
    json_decref(r->header);
    *r = (ReportRun){0};
}

/* --- numbers of the summary --- */

/* Moving average over 1 % of the run on both sides of each point, so that the curve does not lag.
 * Gaps stay gaps. Freed by the caller.
 *
 * A sliding sum that subtracts the points leaving the window would lose the digits of all others
 * after one huge point. So the sum of the window [begin, end) is the sum of two parts that only
 * ever add: to[begin], the sum of [begin, middle), and `behind`, the sum of [middle, end). When
 * begin reaches the middle, the middle moves to end and `to` is filled again. */
static double *smooth(const Curve *c) {
    size_t n = c->n, reach = n / 100 > 2 ? n / 100 : 2;
    double *out = mem_calloc(n, sizeof *out), *to = mem_calloc(n, sizeof *to), behind = 0;
    size_t begin = 0, middle = 0, end = 0, finite = 0;
    for (size_t i = 0; i < n; i++) {
        // points to the nearer end of the run: the window shrinks there and stays centred
        size_t near = i < n - 1 - i ? i : n - 1 - i;
        size_t half = near < reach ? near : reach;
        for (; end < i + half + 1; end++)
            if (isfinite(c->y[end])) behind += c->y[end], finite++;
        for (; begin < i - half; begin++) finite -= isfinite(c->y[begin]) != 0;
        if (begin >= middle) {
            behind = 0, middle = end;
            double sum = 0;
            for (size_t k = end; k-- > begin;) to[k] = sum += isfinite(c->y[k]) ? c->y[k] : 0;
        }
        out[i] = finite && isfinite(c->y[i]) ? (to[begin] + behind) / (double)finite : NAN;
    }
    mem_free(to);
    return out;
}

/* Mean of the last 2 % of the run, but of at least five points; *of is their number. */
static double last_mean(const Curve *c, size_t *of) {
    size_t want = c->n / 50 > 5 ? c->n / 50 : 5, got = 0;
    double sum = 0;
    for (size_t i = c->n; i > 0 && got < want; i--)
        if (isfinite(c->y[i - 1])) sum += c->y[i - 1], got++;
    *of = got;
    return got ? sum / (double)got : NAN;
}

static double median(const Curve *c) {
    double *v = mem_calloc(c->n, sizeof *v);
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (isfinite(c->y[i])) v[n++] = c->y[i];
    double m = median_of(v, (int)n);
    mem_free(v);
    return m;
}

/* The lowest value, and its step in *at. */
static double best(const Curve *c, double *at) {
    double low = NAN;
    for (size_t i = 0; i < c->n; i++)
        if (isfinite(c->y[i]) && !(c->y[i] >= low)) low = c->y[i], *at = c->x[i];
    return low;
}

static double total_s(const Curve *ms) {
    double s = 0;
    for (size_t i = 0; i < ms->n; i++)
        if (isfinite(ms->y[i])) s += ms->y[i] / 1000;
    return s;
}

static void put_time(char *buf, size_t n, double s) {
    if (s < 60)
        snprintf(buf, n, "%.1f s", s);
    else
        progress_time(buf, n, s);
}

/* Steps of 10 s and more in seconds: %.4g would print their milliseconds with an exponent. */
static void put_step_time(char *buf, size_t n, double ms) {
    if (ms < 9999.5)
        snprintf(buf, n, "%.4g ms a step", ms);
    else
        snprintf(buf, n, "%.4g s a step", ms / 1000);
}

/* A cell of a run's summary: a label, a value and a small remark, each "" where nothing is
 * known. */
enum { CELLS = 7 };
typedef struct Cell {
    const char *label;
    char value[48], remark[64];
} Cell;

static void put_if(char *buf, size_t n, const char *fmt, double x) {
    if (isfinite(x)) snprintf(buf, n, fmt, x);
}

static void summary(const ReportRun *r, Cell c[CELLS]) {
    static const char *const labels[CELLS] = {"train loss", "best validation", "tokens",    "time",
                                              "tokens / s", "share of peak",   "parameters"};
    for (int i = 0; i < CELLS; i++) c[i] = (Cell){.label = labels[i]};
    double at = 0, val = best(&r->val, &at), peak = median(&r->peak);
    size_t of;
    put_if(c[0].value, sizeof c[0].value, "%.4f", last_mean(&r->loss, &of));
    snprintf(c[0].remark, sizeof c[0].remark, "mean of the last %zu steps", of);
    put_if(c[1].value, sizeof c[1].value, "%.4f", val);
    if (isfinite(val)) snprintf(c[1].remark, sizeof c[1].remark, "at step %.0f", at);
    if (r->tokens) chart_number(c[2].value, sizeof c[2].value, (double)r->tokens);
    if (r->steps) snprintf(c[2].remark, sizeof c[2].remark, "in %lld steps", (long long)r->steps);
    if (r->ms.n) put_time(c[3].value, sizeof c[3].value, total_s(&r->ms));
    if (r->ms.n) put_step_time(c[3].remark, sizeof c[3].remark, median(&r->ms));
    if (r->speed.n) chart_number(c[4].value, sizeof c[4].value, median(&r->speed));
    if (r->speed.n) snprintf(c[4].remark, sizeof c[4].remark, "median");
    if (isfinite(peak)) snprintf(c[5].value, sizeof c[5].value, "%.1f %%", 100 * peak);
    double n = json_number_value(json_object_get(r->header, "parameters"));
    if (n > 0) chart_number(c[6].value, sizeof c[6].value, n);
}

/* --- the page --- */

static const char style[] =
    ":root{--bg:#f7f7f5;--card:#fff;--ink:#1d2027;--soft:#676c77;--rule:#e6e6e1;--s0:#2f6bd8;"
    "--s1:#d9641e;--s2:#1f8f5f;--s3:#9a4bc9;--s4:#c2304f;--s5:#0d8ea0}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14161a;--card:#1c1f25;--ink:#e8e9ec;"
    "--soft:#9aa0ac;--rule:#2c3038;--s0:#6ea3ff;--s1:#ff9a5c;--s2:#5fd09b;--s3:#c68bf0;"
    "--s4:#ff7d95;--s5:#55cbdb}}\n"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}\n"
    "main{max-width:1080px;margin:0 auto;padding:36px 20px 60px}"
    "h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}h2{font-size:17px;margin:34px 0 10px}"
    ".sub{overflow-wrap:anywhere;color:var(--soft);margin:0 0 22px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;"
    "margin-bottom:14px}"
    ".tile,.chart,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}"
    ".tile{padding:12px 14px}"
    ".tile b{display:block;font-size:21px;white-space:nowrap;font-weight:620;line-height:1.25;"
    "font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px;display:block}\n"
    ".chart{position:relative;margin:0 0 14px;padding:4px}"
    ".chart svg{display:block;width:100%;height:auto}"
    ".small{display:grid;grid-template-columns:repeat(auto-fit,minmax(290px,1fr));gap:0 14px}\n"
    "svg text{font-family:inherit;fill:var(--soft);font-size:12px}"
    "svg .title{fill:var(--ink);font-size:14px;font-weight:600}.grid{stroke:var(--rule)}"
    ".axis{stroke:var(--soft);opacity:.6}"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".faint{stroke-width:1;opacity:.38}.dashed{stroke-dasharray:5 5}"
    ".cross{stroke:var(--soft);stroke-dasharray:3 3}\n"
    ".tip{display:none;position:absolute;pointer-events:none;background:var(--card);"
    "border:1px solid var(--rule);border-radius:7px;padding:6px 10px;font-size:12.5px;"
    "box-shadow:0 3px 14px #0003;white-space:nowrap;z-index:2;font-variant-numeric:tabular-nums}"
    ".tip i,.key{display:inline-block;width:9px;height:9px;border-radius:5px;margin-right:6px}\n"
    ".narrow{display:none}@media(max-width:640px){.wide{display:none}.narrow{display:block}"
    "main{padding:20px 12px 40px}}\n"
    ".card{overflow-x:auto;padding:4px 0}table{border-collapse:collapse;width:100%;font-size:14px}"
    "td,th{text-align:left;padding:5px 14px;border-bottom:1px solid var(--rule);vertical-align:top;"
    "font-variant-numeric:tabular-nums}tr:last-child td{border-bottom:0}"
    "th{color:var(--soft);font-weight:500}tr.same td{color:var(--soft)}td.v{word-break:break-word}"
    "details{margin-top:10px}summary{cursor:pointer;color:var(--soft)}\n"
    ".sample{background:var(--card);border:1px solid var(--rule);border-radius:10px;"
    "padding:12px 18px;margin:0 0 12px}"
    ".sample pre{margin:6px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font:15px/1.55 Georgia,'Times New Roman',serif}"
    ".sample h3{margin:0;font-size:13px;font-weight:500;color:var(--soft)}"
    ".warning{border-left:4px solid var(--s4);padding:8px 14px;background:var(--card);"
    "border-radius:6px}footer{margin-top:40px;color:var(--soft);font-size:13px}\n";

static const char script[] =
    "document.querySelectorAll('.chart').forEach(function(fig){\n"
    "  var c=JSON.parse(fig.querySelector('script').textContent),svg=fig.querySelector('svg');\n"
    "  var hover=svg.querySelector('.hover'),tip=fig.querySelector('.tip');\n"
    "  function nearest(p,x){var a=0,b=p.length/2-1;\n"
    "    while(b-a>1){var m=(a+b)>>1;if(p[2*m]<x)a=m;else b=m}\n"
    "    return Math.abs(p[2*a]-x)<=Math.abs(p[2*b]-x)?a:b}\n"
    "  svg.addEventListener('pointermove',function(e){\n"
    "    var box=svg.getBoundingClientRect(),k=svg.viewBox.baseVal.width/box.width;\n"
    "    var x=c.x0+((e.clientX-box.left)*k-c.left)/c.w*(c.x1-c.x0);\n"
    "    x=Math.min(c.x1,Math.max(c.x0,x));\n"
    "    var html='',dots='',cx=0,step=null;\n"
    "    c.series.forEach(function(s){if(!s.points.length)return;\n"
    "      var i=nearest(s.points,x),px=s.points[2*i],py=s.points[2*i+1];\n"
    "      if(step===null){step=px;cx=c.left+c.w*(px-c.x0)/(c.x1-c.x0)}\n"
    "      var X=c.left+c.w*(px-c.x0)/(c.x1-c.x0),Y=c.top+c.h*(c.y1-py)/(c.y1-c.y0);\n"
    "      if(Y>=c.top-4&&Y<=c.top+c.h)dots+='<circle r=4 cx='+X+' cy='+Y+' "
    "style=\"fill:var(--s'+s.colour+')\"/>';\n"
    "      var l=document.createElement('span');l.textContent=s.label+(px!=step?' (step "
    "'+px+')':'');\n"
    "      html+='<br><i "
    "style=\"background:var(--s'+s.colour+')\"></i>'+l.innerHTML+'&ensp;<b>'+py+'</b>'+c.unit});\n"
    "    hover.innerHTML='<line class=cross x1='+cx+' x2='+cx+' y1='+c.top+' y2='+(c.top+c.h)+' "
    "/>'+dots;\n"
    "    tip.innerHTML='step '+step+html;tip.style.display='block';\n"
    "    var left=cx/k+14;if(left+tip.offsetWidth>box.width)left=cx/k-tip.offsetWidth-10;\n"
    "    tip.style.left=Math.max(0,left)+'px';tip.style.top=(c.top/k+6)+'px'});\n"
    "  "
    "svg.addEventListener('pointerleave',function(){hover.innerHTML='';tip.style.display='none'})})"
    ";\n";

static void put_tiles(FILE *f, const ReportRun *r) {
    Cell c[CELLS];
    summary(r, c);
    fputs("<div class='tiles'>", f);
    for (int i = 0; i < CELLS; i++)
        if (c[i].value[0])
            fprintf(f, "<div class='tile'><span>%s</span><b>%s</b><span>%s</span></div>\n",
                    c[i].label, c[i].value, c[i].remark);
    fputs("</div>\n", f);
}

static void put_comparison(FILE *f, const ReportRun *runs, int n) {
    Cell c[CELLS];
    summary(&runs[0], c);
    fputs("<div class='card'><table><tr><th>run</th>", f);
    for (int i = 0; i < CELLS; i++) fprintf(f, "<th>%s</th>", c[i].label);
    fputs("</tr>\n", f);
    for (int k = 0; k < n; k++) {
        summary(&runs[k], c);
        fprintf(f, "<tr><td><i class='key' style='background:var(--s%d)'></i>", k % COLOURS);
        chart_put(f, "%s</td>", runs[k].name);
        for (int i = 0; i < CELLS; i++) fprintf(f, "<td>%s</td>", c[i].value[0] ? c[i].value : "-");
        fputs("</tr>\n", f);
    }
    fputs("</table></div><p></p>\n", f);
}

/* Draws the curve `offset` bytes into each ReportRun, once per chart. A noisy curve is smoothed;
 * with a single run its steps are drawn faintly behind. The chart of the loss shows the validation
 * loss, too. False: nothing was drawn. */
static bool put_curves(FILE *f, const Chart *charts, int n_charts, const ReportRun *runs, int n,
                       size_t offset, bool noisy) {
    ChartSeries *s = mem_calloc(3 * (size_t)n, sizeof *s);
    double **smoothed = mem_calloc((size_t)n, sizeof *smoothed);
    char **labels = mem_calloc((size_t)n, sizeof *labels);
    bool one = n == 1, loss = offset == offsetof(ReportRun, loss), drawn = true;
    int used = 0;
    for (int k = 0; k < n; k++) {
        const Curve *y = (const Curve *)((const char *)&runs[k] + offset), *val = &runs[k].val;
        const char *alone = loss ? "train, smoothed" : noisy ? "smoothed" : charts->title;
        int colour = k % COLOURS;
        smoothed[k] = smooth(y);
        labels[k] = mem_printf("%s, validation", runs[k].name);
        if (noisy && one)
            s[used++] = (ChartSeries){"each step", y->x, y->y, y->n, colour, CHART_FAINT};
        s[used++] = (ChartSeries){
            one ? alone : runs[k].name, y->x, noisy ? smoothed[k] : y->y, y->n, colour, CHART_LINE};
        if (loss && val->n)
            s[used++] = (ChartSeries){
                one ? "validation" : labels[k], val->x, val->y, val->n, one ? 1 : colour,
                one ? CHART_DOTS : CHART_DASHED};
    }
    for (int i = 0; i < n_charts; i++) drawn = chart_write(f, &charts[i], s, used) && drawn;
    for (int k = 0; k < n; k++) mem_free(smoothed[k]), mem_free(labels[k]);
    mem_free(smoothed), mem_free(labels), mem_free(s);
    return drawn;
}

static void put_charts(FILE *f, const ReportRun *runs, int n) {
    // the page shows one of two drawings, by the width of the screen: the text of the wide one
    // would become too small on a narrow screen
    static const Chart loss[] = {
        {.title = "Loss", .unit = "", .width = 1040, .height = 400, .shown = "wide"},
        {.title = "Loss", .unit = "", .width = 380, .height = 300, .shown = "narrow"}};
    static const struct {
        const char *title;
        size_t offset;
        bool noisy;
    } small[] = {{"Tokens per second", offsetof(ReportRun, speed), true},
                 {"Gradient norm", offsetof(ReportRun, norm), true},
                 {"Learning rate", offsetof(ReportRun, lr), false},
                 {"HellaSwag accuracy", offsetof(ReportRun, hellaswag), false}};
    if (!put_curves(f, loss, 2, runs, n, offsetof(ReportRun, loss), true))
        fputs("<p class='sub'>Fewer than two steps with a finite loss.</p>\n", f);
    fputs("<div class='small'>\n", f);
    for (int i = 0; i < 4; i++) {
        // the first step is slow from cold caches and must not set the scale
        Chart c = {small[i].title, "", 350, 220, .from_zero = true, .floor_step = 2};
        put_curves(f, &c, 1, runs, n, small[i].offset, small[i].noisy);
    }
    fputs("</div>\n", f);
}

static void put_samples(FILE *f, const ReportRun *r, bool name_run) {
    if (!r->n_samples) return;
    chart_put(f, "<h2>What it writes%s%s</h2>\n", name_run ? ": " : "", name_run ? r->name : "");
    size_t stride = (r->n_samples + MOST_SAMPLES - 1) / MOST_SAMPLES;
    for (size_t back = 0; back < r->n_samples; back += stride) { // newest first
        const ReportSample *s = &r->samples[r->n_samples - 1 - back];
        if (back == stride) fputs("<details><summary>Earlier samples</summary><p></p>\n", f);
        fprintf(f, "<div class='sample'><h3>step %lld</h3>", (long long)s->step);
        chart_put(f, "<pre>%s</pre></div>\n", s->text);
    }
    if (r->n_samples > stride) fputs("</details>\n", f);
}

static char *value_text(const json_t *v) {
    if (json_is_string(v)) return mem_strdup(json_string_value(v));
    if (json_is_integer(v)) return mem_printf("%lld", (long long)json_integer_value(v));
    if (json_is_real(v)) return mem_printf("%.12g", json_real_value(v));
    if (json_is_boolean(v)) return mem_strdup(json_is_true(v) ? "yes" : "no");
    return mem_strdup("-");
}

static void put_row(FILE *f, const char *key, const ReportRun *runs, int n, bool in_options,
                    bool strong) {
    chart_put(f, strong ? "<tr><td>%s</td>" : "<tr class='same'><td>%s</td>", key);
    for (int k = 0; k < n; k++) {
        const json_t *o = runs[k].header;
        if (in_options) o = json_object_get(o, "options");
        char *text = value_text(json_object_get(o, key));
        chart_put(f, "<td class='v'>%s</td>", text[0] ? text : "-");
        mem_free(text);
    }
    fputs("</tr>\n", f);
}

/* Was the option changed from its default in any of the runs, or does it differ among them? */
static bool stands_out(const char *key, const ReportRun *runs, int n) {
    const json_t *first = json_object_get(json_object_get(runs[0].header, "options"), key);
    for (int k = 0; k < n; k++) {
        const json_t *changed = json_object_get(runs[k].header, "changed");
        for (size_t i = 0; i < json_array_size(changed); i++) {
            const char *name = json_string_value(json_array_get(changed, i));
            if (name && strcmp(name, key) == 0) return true;
        }
        const json_t *mine = json_object_get(json_object_get(runs[k].header, "options"), key);
        if ((first || mine) && !json_equal(first, mine)) return true;
    }
    return false;
}

static void put_head(FILE *f, const ReportRun *runs, int n) {
    fputs("<div class='card'><table>", f);
    if (n > 1) {
        fputs("<tr><th></th>", f);
        for (int k = 0; k < n; k++) chart_put(f, "<th>%s</th>", runs[k].name);
        fputs("</tr>\n", f);
    }
}

static void put_options(FILE *f, const ReportRun *runs, int n) {
    const json_t *all = NULL;
    const char *key;
    json_t *v;
    for (int k = 0; k < n && !all; k++) all = runs[k].header;
    if (!all) return;
    fputs("<h2>The run</h2>\n", f);
    put_head(f, runs, n);
    json_object_foreach((json_t *)all, key, v) if (!json_is_object(v) && !json_is_array(v))
        put_row(f, key, runs, n, false, true);
    fputs("</table></div>\n", f);
    json_t *options = json_object_get(all, "options");
    if (!json_object_size(options)) return;
    fputs("<h2>Options set</h2>\n", f);
    put_head(f, runs, n);
    json_object_foreach(options, key, v) if (stands_out(key, runs, n))
        put_row(f, key, runs, n, true, true);
    fputs("</table></div>\n<details><summary>All options</summary><p></p>\n", f);
    put_head(f, runs, n);
    json_object_foreach(options, key, v) put_row(f, key, runs, n, true, stands_out(key, runs, n));
    fputs("</table></div></details>\n", f);
}

static void put_warnings(FILE *f, const ReportRun *r) {
    if (r->skipped) {
        chart_put(f, "<p class='warning'>%s", r->name);
        fprintf(f, ": %lld updates were skipped as outliers.</p>\n", (long long)r->skipped);
    }
}

static void put_subtitle(FILE *f, const ReportRun *r) {
    static const char *const keys[] = {"model", "cpu", "time"};
    bool any = false;
    fputs("<p class='sub'>", f);
    for (int i = 0; i < 3; i++) {
        const char *text = json_string_value(json_object_get(r->header, keys[i]));
        if (text) chart_put(f, any ? " &middot; %s" : "%s", text), any = true;
    }
    fputs("</p>\n", f);
}

void report_write(FILE *f, const char *title, const ReportRun *runs, int n) {
    char now[64];
    stamp_time(now, sizeof now);
    chart_put(f,
              "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
              "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
              "<meta name='color-scheme' content='light dark'><title>%s</title>\n<style>\n",
              title);
    fputs(style, f);
    chart_put(f, "</style></head><body><main>\n<h1>%s</h1>\n", title);
    if (n == 1)
        put_subtitle(f, &runs[0]), put_tiles(f, &runs[0]);
    else
        fputs("<p class='sub'>Several runs side by side</p>\n", f), put_comparison(f, runs, n);
    for (int k = 0; k < n; k++) put_warnings(f, &runs[k]);
    put_charts(f, runs, n);
    for (int k = 0; k < n; k++) put_samples(f, &runs[k], n > 1);
    put_options(f, runs, n);
    fprintf(
        f,
        "<footer>Written by train_gpt's report tool, %s.</footer>\n</main>\n<script>\n%s</script>"
        "</body></html>\n",
        now, script);
}
