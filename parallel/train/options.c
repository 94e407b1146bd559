#include "parallel/train/options.h"

#include <stddef.h>
#include <string.h>

/* Offset of an option's value in Options. options_table adds the address of the Options. */
#define AT(member) ((void *)offsetof(Options, member))

static const Opt rows[] = {
    {.type = OPT_GROUP, .help = "Data"},
    {"config", OPT_CONFIG, AT(config), "", 0, 0, "FILE",
     "options from a file: lines \"lr = 6e-4\", JSON, what --json wrote, or a checkpoint's "
     "folder; the command line wins"},
    {"train", OPT_STR, AT(train), "", 0, 0, "GLOB",
     "token shards to train on (llm.c, nanoGPT, Megatron; commas join)"},
    {"val", OPT_STR, AT(val), "", 0, 0, "GLOB", "token shards of the validation loss"},
    {"hellaswag", OPT_STR, AT(hellaswag), "", 0, 0, "FILE",
     "llm.c's hellaswag_val.bin, scored with every evaluation"},
    {"tokenizer", OPT_STR, AT(tokenizer), "", 0, 0, "PATH",
     "folder with vocab.json and merges.txt, tokenizer.json, or gpt2_tokenizer.bin"},
    {.type = OPT_GROUP, .help = "Model"},
    {"model", OPT_STR, AT(model), "d12", 0, 0, "NAME|k=v,...",
     "d6 d12 (GPT-2 124M) d24 d36 d48, llama, layers= heads= kv_heads= channels= ffn= seq= "
     "vocab= norm= pos= act= bias= tied= eps= theta= rope_factor= rope_seq= head_dim= qkv_bias= "
     "qk_norm="},
    {"init", OPT_STR, AT(init), "", 0, 0, "FILE",
     "start from a Hugging Face folder, .safetensors, llm.c .bin, or the newest checkpoint of a "
     "folder of --save"},
    {"backend", OPT_CHOICE, AT(backend), "auto", 0, 0, "auto|cpu|cuda",
     "where the kernels run; auto: on a GPU where one works"},
    {"graphs", OPT_CHOICE, AT(graphs), "auto", 0, 0, "auto|none|all",
     "auto: on a GPU, the calls of a micro-batch are recorded once and repeated where that can "
     "be; none: never; all: also where NCCL serves several GPUs of one process, which its "
     "guide advises against"},
    {"tune", OPT_BOOL, AT(tune), "1", 0, 0, "",
     "on a GPU, every matmul takes the fastest of the library's algorithms: timed once, kept "
     "in the user's cache for other runs; --no-tune: what the library proposes first"},
    {"dtype", OPT_CHOICE, AT(dtype), "fp32", 0, 0, "fp32|bf16",
     "of matmuls; sums and master weights are fp32"},
    {"recompute", OPT_CHOICE, AT(recompute), "none", 0, 0, "none|selective|full",
     "activations that backward recomputes instead of storing"},
    {"memory", OPT_BOOL, AT(memory), "0", 0, 0, "", "print the memory table and exit"},
    {"listing", OPT_CHOICE, AT(listing), "none", 0, 1,
     "none|build|differentiate|recompute|panels|head|exact|fuse|split|halves|sums|schedule",
     "print a micro-batch as a list of kernels and collectives on typed tensors and exit. The list "
     "is printed as it is after the named pass: build is the forward pass; differentiate adds "
     "backward; recompute adds recomputed operations; panels cuts the matmuls of stay=y (SUMMA); "
     "head cuts the head into chunks of tokens; exact turns sums into sums of integers; fuse joins "
     "operations into one kernel and predicts times; split cuts into chunks; halves makes two half "
     "micro-batches; sums completes the gradients in the last micro-batch of a step; schedule, or "
     "no word, is the order of execution and shows what hides under what. From differentiate "
     "on the end of the step follows. --json writes the list as data, --cluster predicts its times "
     "for a described cluster"},
    {.type = OPT_GROUP, .help = "Training"},
    {"steps", OPT_INT, AT(steps), "1000", 0, 1e12, "N", "optimizer steps"},
    {"batch", OPT_INT, AT(batch), "0", 0, 1e12, "TOKENS",
     "global batch in tokens, like 524288 or 512Ki; 0 is a micro-batch at each coordinate of d and "
     "z, with --layout auto for each rank"},
    {"micro", OPT_INT, AT(micro), "4", 1, 1e9, "N", "sequences per micro-batch"},
    {"seq", OPT_INT, AT(seq), "0", 0, 1e9, "S", "positions of a sequence; 0 is the model's"},
    {"lr", OPT_FLOAT, AT(lr), "3e-4", 0, 1e6, "X", "peak learning rate"},
    {"min-lr", OPT_FLOAT, AT(min_lr), "0", 0, 1e6, "X", "learning rate at the end"},
    {"warmup", OPT_INT, AT(warmup), "0", 0, 1e12, "N", "steps of linear warm-up"},
    {"schedule", OPT_CHOICE, AT(schedule), "cosine", 0, 0, "cosine|linear|constant|wsd",
     "after the warm-up"},
    {"wsd-decay", OPT_FLOAT, AT(wsd_decay), "0.2", 0, 1, "X",
     "share of the steps in which wsd falls"},
    {"weight-decay", OPT_FLOAT, AT(weight_decay), "0.1", 0, 1e6, "X",
     "decoupled, of 2-D weights only"},
    {"beta1", OPT_FLOAT, AT(beta1), "0.9", 0, 0.999999, "X", "AdamW"},
    {"beta2", OPT_FLOAT, AT(beta2), "0.95", 0, 0.999999, "X", "AdamW"},
    // not 0: the update of a gradient of 0 would be 0 / 0
    {"eps", OPT_FLOAT, AT(eps), "1e-8", 1e-37, 1, "X", "AdamW"},
    {"clip", OPT_FLOAT, AT(clip), "1", 0, 1e12, "X",
     "limit of the gradient's global norm; 0 is none"},
    {"skip-loss-z", OPT_FLOAT, AT(skip_loss_z), "0", 0, 1e6, "X",
     "leave out an update whose loss has a larger z-score; 0: never"},
    {"skip-norm-z", OPT_FLOAT, AT(skip_norm_z), "0", 0, 1e6, "X", "the same for the gradient norm"},
    {"seed", OPT_INT, AT(seed), "1337", 0, 9e15, "N",
     "initial weights, order of the data, sampling"},
    {"threads", OPT_INT, AT(threads), "0", 0, 4096, "N", "0 is one per core"},
    {.type = OPT_GROUP, .help = "Ranks"},
    {"ranks", OPT_INT, AT(ranks), "0", 0, 4096, "N",
     "ranks as threads of this process; under mpirun or srun the launcher decides"},
    {"layout", OPT_STR, AT(layout), "auto", 0, 0, "auto|SPEC",
     "d2.z1.x4.y2 (innermost last; x2.y2.x2.y2 is 4x4 in tiles of 2x2) with flags: sp, heads, "
     "stay=y, zero1 zero2 zero3; or megatron, megatron-sp, dp, fsdp, atp:4x2, tensor3d:2x4x2, "
     "axonn:2x2x4x2, optimus:2x2, tesseract:2x2x2, cube:2"},
    {"overlap", OPT_STR, AT(overlap), "auto", 0, 0, "auto|none|FLAGS",
     "how communication is hidden under computation: bulk chunk=n ring fused halves, joined "
     "by '+'; auto: the search's choice with --layout auto, bulk on a given layout"},
    {"plan", OPT_BOOL, AT(plan), "0", 0, 0, "",
     "search, print the best layouts, every named scheme and the reasons, and exit; with "
     "--json as JSON"},
    {"cluster", OPT_STR, AT(cluster), "", 0, 0, "FILE|NAME:NODES",
     "with --plan, --listing or --explain-matmul: for a described cluster, or h200:16, "
     "h100:128, a100:8, v100:4, consumer:2, cpu:4"},
    {"explain-matmul", OPT_STR, AT(explain_matmul), "", 0, 0, "M,N,K[,wgrad]",
     "print how y[M,N] = a[M,K] b[K,N] is scheduled on a GPU of --cluster, and exit: tiles, "
     "waves, predicted time data-parallel, with split-K, with Stream-K, and a picture; wgrad: "
     "added to y in fp32"},
    {"calibrate", OPT_CHOICE, AT(calibrate), "auto", 0, 0, "auto|again|none",
     "measure kernels and collectives for --layout auto: once, again, or not at all"},
    {"refine", OPT_INT, AT(refine), "3", 0, 8, "N",
     "near-optimal candidates of --layout auto on which the first steps run, to keep the "
     "fastest; 0 is none"},
    {"sync-every", OPT_INT, AT(sync_every), "1", 1, 1e9, "H",
     "local steps of the replicas along d between outer steps (DiLoCo); 1 averages gradients "
     "in every step"},
    {"outer-lr", OPT_FLOAT, AT(outer_lr), "1", 0, 1e3, "X",
     "learning rate of outer steps; 1 is the mean of the replicas (DiLoCo: 0.7)"},
    {"outer-momentum", OPT_FLOAT, AT(outer_momentum), "0", 0, 0.999999, "X",
     "Nesterov momentum of outer steps (DiLoCo: 0.9)"},
    {"fragments", OPT_INT, AT(fragments), "1", 1, 1e6, "N",
     "groups of tensors whose outer steps are spread over the H steps"},
    {"timeout", OPT_INT, AT(timeout), "60", 0, 1e9, "S",
     "seconds that a rank waits for another before the job ends, at the start and in saves ten "
     "times as long; 0 is for ever"},
    {"check-tp", OPT_INT, AT(check_tp), "0", 0, 1e6, "K",
     "train K steps on one rank as well, compare every tensor, say what is wrong and exit"},
    {"audit-every", OPT_INT, AT(audit_every), "0", 0, 1e12, "N",
     "steps between audits, which compare the copies of weights and moments on different ranks; "
     "0 is never"},
    {"exact", OPT_BOOL, AT(exact), "0", 0, 0, "",
     "the same loss and weights to the last bit on every mesh: sums are sums of integers, of a "
     "limited range; requires --dtype fp32, takes a third longer"},
    {"count", OPT_BOOL, AT(count), "0", 0, 0, "",
     "print a hash of the initial weights, and at the end every collective of a step with its "
     "bytes and time"},
    {"kernels", OPT_STR, AT(kernels), "auto", 0, 0, "SET",
     "auto, avx512_amx, avx512_bf16, avx512, avx2 or portable"},
    {"libraries", OPT_STR, AT(libraries), "", 0, 0, "FOLDER:...|none",
     "where cuBLASLt and NCCL are; without it they are looked for by the loader, in CUDA_HOME, "
     "/usr/local/cuda and the packages of PyTorch; none: matmuls by kernels of this program, "
     "slower, above all in fp32"},
    {.type = OPT_GROUP, .help = "Evaluation and sampling"},
    {"eval-every", OPT_INT, AT(eval_every), "250", 0, 1e12, "N",
     "steps between validations; 0 is only at the end"},
    {"eval-batches", OPT_INT, AT(eval_batches), "20", 0, 1e12, "N",
     "micro-batches of a validation; 0 is all"},
    {"sample-every", OPT_INT, AT(sample_every), "0", 0, 1e12, "N",
     "steps between samples; 0 is never"},
    {"sample-tokens", OPT_INT, AT(sample_tokens), "128", 1, 1e9, "N", "length of a sample"},
    {"samples", OPT_INT, AT(samples), "1", 1, 1e6, "N",
     "samples at a time: of --seed, of the next seed, and so on"},
    {"prompt", OPT_STR, AT(prompt), "", 0, 0, "TEXT",
     "start of samples; without --train, sample once and exit"},
    {"temperature", OPT_FLOAT, AT(temperature), "1", 0, 1e6, "X", "0 takes the likeliest token"},
    {"top-k", OPT_INT, AT(top_k), "0", 0, 1e9, "N", "sample among the N likeliest; 0 is all"},
    {"top-p", OPT_FLOAT, AT(top_p), "1", 0, 1, "X",
     "sample among the likeliest that make up this share"},
    {.type = OPT_GROUP, .help = "Checkpoints and records"},
    {"save", OPT_STR, AT(save), "", 0, 0, "DIR", "where checkpoints go"},
    {"save-every", OPT_INT, AT(save_every), "1000", 0, 1e12, "N",
     "steps between checkpoints; 0 is only at the end"},
    {"save-best", OPT_BOOL, AT(save_best), "0", 0, 0, "",
     "also save after each validation with the lowest loss so far, and keep that checkpoint until "
     "a better one"},
    {"keep", OPT_INT, AT(keep), "2", 0, 1e6, "N", "newest checkpoints that stay; 0 is all"},
    {"keep-every", OPT_INT, AT(keep_every), "0", 0, 1e12, "N",
     "checkpoints of every N-th step stay for ever"},
    {"resume", OPT_BOOL, AT(resume), "0", 0, 0, "",
     "continue from the newest checkpoint in --save"},
    {"export-hf", OPT_STR, AT(export_hf), "", 0, 0, "DIR",
     "at the end, write config.json, model.safetensors and the tokenizer"},
    {"export-llmc", OPT_STR, AT(export_llmc), "", 0, 0, "FILE",
     "at the end, write an llm.c .bin (bf16 with --dtype bf16)"},
    {"log-every", OPT_INT, AT(log_every), "0", 0, 1e12, "N",
     "steps between the printed lines that stay on the screen; 0 prints every step, on a terminal "
     "20 lines per run; --json and --csv always record every step"},
    {"progress", OPT_CHOICE, AT(progress), "auto", 0, 0, "auto|bar|none",
     "the bar of a terminal; auto: not under mpirun or srun, whose output goes into files"},
    {"json", OPT_STR, AT(json), "", 0, 0, "FILE",
     "one JSON object per line, full precision; - is the standard output, and all else goes to "
     "the standard error"},
    {"csv", OPT_STR, AT(csv), "", 0, 0, "FILE", "the same as columns"},
    {"profile", OPT_BOOL, AT(profile), "0", 0, 0, "",
     "at the end, print how long each kernel of a step took"},
    {"trace", OPT_STR, AT(trace), "", 0, 0, "FILE",
     "timeline of two steps of every rank, for Perfetto and gpt-timeline, and what overlap "
     "hides: one step without it, one with it"},
    {"tensorboard", OPT_STR, AT(tensorboard), "", 0, 0, "DIR", "TensorBoard event file"},
    {"ledger", OPT_STR, AT(ledger), "", 0, 0, "FILE|none",
     "gets a line with the predicted and measured time of the run; default: the user's cache"},
    {"version", OPT_BOOL, AT(version), "0", 0, 0, "",
     "print the commit, sets of kernels, MPI and CUDA of this program, and exit"},
    {0}};

const Opt *options_table(Options *o) {
    static Opt table[sizeof rows / sizeof *rows];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        table[i] = rows[i];
        if (rows[i].name) table[i].value = (char *)o + (uintptr_t)rows[i].value;
    }
    return table;
}

OptionRole options_role(const Opt *row) {
    static const struct {
        const char *name;
        OptionRole role;
    } roles[] = {
        {"train", OPTION_INPUT},     {"val", OPTION_INPUT},    {"hellaswag", OPTION_INPUT},
        {"tokenizer", OPTION_INPUT}, {"init", OPTION_INPUT},   {"threads", OPTION_OWN},
        {"kernels", OPTION_OWN},     {"json", OPTION_OWN},     {"libraries", OPTION_OWN},
        {"csv", OPTION_OWN},         {"ledger", OPTION_OWN},   {"tensorboard", OPTION_OWN},
        {"config", OPTION_OWN},      {"progress", OPTION_OWN}, {"log-every", OPTION_OWN},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(row->name, roles[i].name) == 0) return roles[i].role;
    return OPTION_ALIKE;
}
