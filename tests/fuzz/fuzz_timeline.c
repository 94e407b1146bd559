/* Any bytes as a file of --trace: it is drawn, or refused in words. */
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/timeline_text.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    seed_text("small",
              "{'traceEvents':[{'ph':'M','name':'process_name','pid':0,"
              "'args':{'name':'rank 0 on here'}},{'ph':'X','cat':'step','name':'serial','pid':0,"
              "'tid':0,'ts':0,'dur':8000,'args':{'step':4}},{'ph':'X','cat':'step',"
              "'name':'overlap','pid':0,'tid':0,'ts':9000,'dur':6000,'args':{'step':5}},"
              "{'cat':'kernel','pid':0,'ts':0,'dur':4000,'args':{'part':'matmuls'}},"
              "{'cat':'collective','pid':0,'ts':10000,'dur':5000},"
              "{'cat':'exposed','pid':0,'ts':14000,'dur':1000}],'otherData':{'layout':'d2 & <x>',"
              "'overlap':'bulk','model':'d12\\u001b[31m','backend':'mpi','ranks':1}}");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Err e;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) abort();
    bool ok = timeline_draw(f, (const char *)p, n, -1, 60, true, &e);
    fclose(f);
    if (ok != (size > 0)) abort();
    mem_free(text);
    return 0;
}
