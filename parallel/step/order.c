/* order -- what operations are taken to cost where a list is put in order. */
#include "base/mem.h"
#include "parallel/step/schedule.h"

/* Is an operation priced without its bytes? Those of copied heads, which have no padding, differ
 * between ranks and would give them different orders; a bucket is only a name. */
static bool counts_no_bytes(const Op *op) {
    return op->kv || op->kind == OP_PACK_COPIES || op->kind == OP_UNPACK_COPIES ||
           op->kind == OP_BUCKET;
}

/* Links that are slow on purpose, much slower than kernels: so a collective is waited for as late
 * as the window allows. Where links are fast, this costs nothing; what is ordered for fast links
 * waits on slow ones. */
static OpCost *nominal_costs(const Program *p) {
    const double flops = 50e9, memory = 10e9, link = 30e6, latency = 20e-6;
    OpCost *cost = mem_alloc((size_t)p->n_ops * sizeof *cost);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        bool grows = op->kind == OP_ALL_GATHER || op->kind == OP_BROADCAST;
        double bytes = 0;
        if (!counts_no_bytes(op) && op->n_in)
            bytes = (double)step_tensor_bytes(p, &p->tensor[grows ? op->out : op->in[0]]);
        cost[i] = (OpCost){.level = -1};
        if (op_info(op->kind)->collective)
            cost[i] =
                (OpCost){.seconds = latency + bytes / link, .wire = bytes / link, .slowdown = 1};
        else if (op_begins_kernel(p, i))
            cost[i].seconds = op_flops(p, op) / flops + bytes / memory;
    }
    return cost;
}

void program_order_nominal(Program *p) {
    OpCost *cost = nominal_costs(p);
    program_order(p, cost, schedule_window(&p->shape->overlap));
    mem_free(cost);
}
