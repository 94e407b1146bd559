/* Any bytes as a file of --trace: it is drawn, or refused in words. */
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/timeline_text.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    seed_text("small",
              "{'traceEvents':[{'ph':'M','name':'process_name','pid':0,"
              "'args':{'name':'rank 0 on here'}},{'ph':'M','name':'process_name','pid':1,"
              "'args':{'name':'rank 1 on there'}},{'ph':'M','name':'process_name','pid':2,"
              "'args':{'name':'predicted'}},{'ph':'X','cat':'step','name':'serial','pid':0,'tid':0,"
              "'ts':0,'dur':8000,'args':{'step':4}},{'ph':'X','cat':'step','name':'serial','pid':1,"
              "'tid':0,'ts':1000,'dur':7000},{'ph':'X','cat':'step','name':'overlap','pid':0,"
              "'tid':0,'ts':9000,'dur':6000,'args':{'step':5}},{'ph':'X','cat':'step',"
              "'name':'overlap','pid':1,'tid':0,'ts':9000,'dur':6000},{'ph':'X','cat':'step',"
              "'name':'overlap','pid':2,'tid':0,'ts':9000,'dur':5000},{'cat':'kernel','pid':0,"
              "'ts':0,'dur':4000,'args':{'part':'matmuls'}},{'cat':'collective','pid':0,'ts':4000,"
              "'dur':3000},{'cat':'exposed','pid':0,'ts':4000,'dur':3000},{'cat':'kernel','pid':0,"
              "'ts':7000,'dur':500,'args':{'part':'update'}},{'cat':'kernel','pid':1,'ts':1000,"
              "'dur':4000,'args':{'part':'norms'}},{'cat':'exposed','pid':1,'ts':5000,'dur':3000},"
              "{'cat':'kernel','pid':0,'ts':9000,'dur':5000,'args':{'part':'matmuls'}},"
              "{'cat':'collective','pid':0,'ts':10000,'dur':5000},{'cat':'exposed','pid':0,"
              "'ts':14000,'dur':1000},{'cat':'kernel','pid':1,'ts':9000,'dur':6000,"
              "'args':{'part':'matmuls'}},{'cat':'collective','pid':1,'ts':10000,'dur':2000},"
              "{'cat':'kernel','pid':2,'ts':9000,'dur':5000,'args':{'part':'matmuls'}},"
              "{'cat':'collective','pid':2,'ts':9500,'dur':4500},{'cat':'kernel','pid':0,"
              "'ts':20000,'dur':1}],'otherData':{'layout':'d2 & <x>','overlap':'bulk',"
              "'model':'d12\\u001b[31m','backend':'mpi','ranks':2,'layers':[{'layer':'qkv',"
              "'collectives':1,'bytes':8,'serial_ms':3,'exposed_ms':0.5}]}}");
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
