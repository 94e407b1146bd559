#include "parallel/train/options.h"

/* The rows: names of other programs, the option here (NULL: none), a note (NULL: none). First the
 * notes that several rows share. */
#define TOKENS "in tokens: sequences times --seq"
#define MODEL_KEY                                                                                  \
    "a key of --model: joined by commas, with layers= heads= kv_heads= channels= ffn= seq= vocab="
#define ONLY_HERE "nothing leaves this machine: --json, --csv and --tensorboard write files"
#define LAUNCHER  "mpirun or srun sets the number of processes, --ranks that of threads in one"

const OptForeign options_foreign[] = {
    /* data */
    {"data data-path train-data train-data-path train-file train-files dataset dataset-path "
     "input-bin -i training.dataset-path",
     "train", "a file, or a pattern in quotes"},
    {"do-train", "train GLOB", NULL},
    {"dataset-name training.dataset data-dir dataset-config-name", "train",
     "token shards; gpt-tokenize makes them from text"},
    {"val-data valid-data validation-file val-data-path valid-data-path input-val-bin -j "
     "validation.dataset validator.dataset",
     "val", "a file, or a pattern in quotes"},
    {"split", "val", "another file: gpt-tokenize encode splits a text"},
    {"tokenizer-name tokenizer-model tokenizer-path tokenizer-name-or-path vocab-file "
     "hf-assets-path model.tokenizer-path",
     "tokenizer", "its folder or file"},
    {"merge-file merges-file", "tokenizer", "the folder with vocab.json and merges.txt"},
    {"tokenizer-type", "tokenizer", "the files say of which type it is"},
    {"num-workers dataloader-num-workers workers preprocessing-num-workers", NULL,
     "shards are mapped files; there is nothing for other processes to load"},
    {"data-cache-path reset-position-ids reset-attention-mask eod-mask-loss", NULL,
     "sequences are taken from the shards as they lie there, across documents"},
    {"streaming", NULL, "shards are mapped: they may be larger than memory as it is"},

    /* model */
    {"n-layer n-layers num-layers num-hidden-layers layers depth", "model layers=N", MODEL_KEY},
    {"n-head n-heads num-heads num-attention-heads heads", "model heads=N", MODEL_KEY},
    {"n-embd d-model hidden-size n-embed embed-dim width channels hidden-dim dim",
     "model channels=N", MODEL_KEY},
    {"num-query-groups num-key-value-heads n-kv-heads kv-heads group-query-attention",
     "model kv_heads=N", MODEL_KEY},
    {"ffn-hidden-size intermediate-size n-inner ffn d-ff", "model ffn=N", MODEL_KEY},
    {"vocab vocab-size padded-vocab-size", "model vocab=N",
     "with --tokenizer it is the tokenizer's; it is never padded in files"},
    {"max-position-embeddings n-positions n-ctx", "model seq=N", MODEL_KEY},
    {"normalization norm", "model norm=rms", "layer or rms"},
    {"swiglu activation-function hidden-act act", "model act=swiglu", "gelu, relu2 or swiglu"},
    {"position-embedding-type use-rotary-position-embeddings rope pos", "model pos=rope",
     "learned or rope"},
    {"rotary-base rope-theta", "model theta=X", NULL},
    {"rope-scaling-factor", "model rope_factor=X", "that of LLaMA 3.1: 8, of LLaMA 3.2: 32"},
    {"norm-epsilon layernorm-epsilon layer-norm-epsilon rms-norm-eps", "model eps=X", NULL},
    {"bias disable-bias-linear add-bias-linear", "model bias=0", "0 or 1"},
    {"qkv-bias add-qkv-bias", "model qkv_bias=1", "0 or 1"},
    {"head-dim kv-channels", "model head_dim=N", MODEL_KEY},
    {"qk-norm qk-layernorm", "model qk_norm=1", "0 or 1"},
    {"untie-embeddings-and-output-weights tie-word-embeddings tied", "model tied=0", "0 or 1"},
    {"model-name model-type model.name model.flavor config-name model-size", "model",
     "d6 d12 d24 d36 d48, llama, or layers=...; a folder's is read by --init"},
    {"make-vocab-size-divisible-by", NULL,
     "a vocabulary is sharded as it is, also where ranks do not divide it"},
    {"dropout attention-dropout hidden-dropout attn-pdrop resid-pdrop embd-pdrop", NULL,
     "there is no dropout, as in most pre-training today"},
    {"init-from -e", "init FILE",
     "a folder of Hugging Face's, .safetensors or llm.c's .bin; a new model: --model d12; to go "
     "on: --resume"},
    {"model-name-or-path pretrained pretrained-model load-hf hf-model checkpoint.initial-load-path "
     "pretrained-checkpoint",
     "init", "a folder of Hugging Face's, .safetensors or llm.c's .bin; a new model: --model d12"},
    {"init-method-std initializer-range", NULL,
     "initial weights are GPT-2's: 0.02, residual projections less"},
    {"num-experts expert-model-parallel-size moe-router-topk parallelism.expert-parallel-degree",
     NULL, "there are no mixtures of experts"},
    {"lora lora-r lora-rank peft use-peft", NULL, "all weights are trained"},

    /* precision and speed */
    {"bf16 use-bf16", "dtype bf16", NULL},
    {"fp32 -f32", "dtype fp32", NULL},
    {"training.dtype training.mixed-precision-param mixed-precision precision amp torch-dtype",
     "dtype", "fp32 or bf16"},
    {"fp16 half loss-scale initial-loss-scale", "dtype bf16",
     "there is no fp16, and no loss scaling"},
    {"fp8 fp8-format fp8-recipe", "dtype bf16", "there is no fp8"},
    {"tf32 -f allow-tf32", NULL, "matmuls are fp32, or bf16 with --dtype bf16"},
    {"-w", NULL, "master weights are always kept in fp32"},
    {"-ge gelu-fusion", NULL, "fusion is chosen by the kernels themselves"},
    {"compile torch-compile compile.enable training.compile jit", NULL, "the program is compiled"},
    {"use-flash-attn flash-attn flash-attention attn-implementation transformer-impl "
     "use-flash-attention",
     NULL, "attention never stores its matrix of scores; there is nothing to choose"},
    {"-r gradient-checkpointing activation-checkpointing recompute-granularity "
     "recompute-activations activation-checkpoint.mode activation-checkpoint",
     "recompute", "none, selective or full"},
    {"recompute-method recompute-num-layers", "recompute", "it is of all layers"},
    {"gpu use-cuda cuda device", "backend", "auto, cpu or cuda"},
    {"cpu use-cpu no-cuda", "backend cpu", NULL},
    {"distributed-backend ddp-backend", NULL, "MPI, NCCL or threads: what the ranks are decides"},
    {"num-threads n-threads omp-num-threads cores nthreads", "threads", NULL},
    {"cpu-offload offload deepspeed fsdp-config parallelism.fsdp-reshard-after-forward", NULL,
     "what does not fit on one rank is sharded over several: --layout fsdp, or --recompute"},

    /* batch and steps */
    {"batch-size -b micro-batch-size per-device-train-batch-size training.local-batch-size "
     "device-batch-size mbs bs",
     "micro", "sequences of a micro-batch; --batch is the whole step, in tokens"},
    {"per-device-eval-batch-size", "micro", "the micro-batches of validations are as large"},
    {"global-batch-size training.global-batch-size gbs train-batch-size", "batch TOKENS", TOKENS},
    {"total-batch-size -d batch-tokens training.num-tokens-per-train-step batch-size-tokens",
     "batch", "in tokens"},
    {"gradient-accumulation-steps grad-accum accum grad-accum-steps accumulate "
     "gradient-accumulation accumulation-steps",
     "batch TOKENS",
     "in tokens; micro-batches follow: batch / (micro x seq x replicas), rounded up"},
    {"block-size -t seq-len seq-length seqlen sequence-length context-length max-seq-len ctx "
     "ctx-len "
     "max-length context context-size training.seq-len training.max-context-length max-seq-length",
     "seq", NULL},
    {"max-iters -x train-iters max-steps training.steps num-iterations num-steps iters iterations "
     "n-steps total-steps",
     "steps", NULL},
    {"epochs num-epochs num-train-epochs max-epochs n-epochs", "steps STEPS",
     "an epoch is the tokens of --train / --batch; the header says how many the run makes"},
    {"train-samples", "steps STEPS", "samples / sequences of a step"},
    {"-a overfit-single-batch overfit", NULL, "--train a file of one batch does it"},

    /* optimizer and schedule */
    {"learning-rate -l optimizer.lr max-lr peak-lr base-lr", "lr", NULL},
    {"lr-scheduler.min-lr-factor -q learning-rate-decay-frac final-lr-frac", "min-lr X",
     "a rate, not a share of --lr"},
    {"learning-rate-min final-lr end-lr lr-end", "min-lr", NULL},
    {"warmup-iters -u lr-warmup-iters warmup-steps lr-scheduler.warmup-steps num-warmup-steps "
     "lr-warmup-steps warm-up",
     "warmup", NULL},
    {"warmup-ratio lr-warmup-fraction warmup-frac", "warmup N", "in steps"},
    {"lr-decay-iters lr-decay-steps", "steps", "the rate falls until the last step"},
    {"lr-decay-style -k lr-scheduler-type lr-scheduler lr-scheduler.decay-type lr-schedule "
     "scheduler",
     "schedule", NULL},
    {"decay-lr", "schedule constant", "for --no-decay-lr; cosine is the default"},
    {"lr-scheduler.decay-ratio lr-wsd-decay-iters", "wsd-decay X",
     "a share of the steps, with --schedule wsd"},
    {"-c wd optimizer.weight-decay", "weight-decay", NULL},
    {"adam-beta1 optimizer.beta1 b1", "beta1", NULL},
    {"adam-beta2 optimizer.beta2 b2", "beta2", NULL},
    {"adam-eps adam-epsilon optimizer.eps epsilon", "eps", NULL},
    {"grad-clip clip-grad max-grad-norm training.max-norm max-norm grad-clip-norm "
     "gradient-clip-val gradient-clipping clip-norm",
     "clip", NULL},
    {"optimizer optim optimizer.name optimizer-type use-muon muon", NULL, "the optimizer is AdamW"},
    {"-sl skip-update-lossz", "skip-loss-z", NULL},
    {"-sg skip-update-gradz", "skip-norm-z", NULL},
    {"random-seed debug.seed manual-seed", "seed", NULL},
    {"deterministic deterministic-mode debug.deterministic", NULL,
     "a run is repeatable as it is; --exact gives the same bits on every mesh"},

    /* ranks */
    {"tensor-model-parallel-size tp tp-size tensor-parallel parallelism.tensor-parallel-degree "
     "model-parallel-size",
     "layout xN", "x is tensor parallelism; d2.x4 joins axes, auto searches"},
    {"data-parallel-size dp dp-size parallelism.data-parallel-replicate-degree ddp", "layout dN",
     "d is data parallelism; d2.x4 joins axes, auto searches"},
    {"fsdp parallelism.data-parallel-shard-degree data-parallel-sharding-strategy", "layout fsdp",
     NULL},
    {"-z zero zero-stage use-distributed-optimizer zero-optimization", "layout dp+zero1",
     "zero1, zero2 or zero3"},
    {"sequence-parallel", "layout megatron-sp", "or the flag +sp of any layout"},
    {"pipeline-model-parallel-size pp pp-size parallelism.pipeline-parallel-degree", NULL,
     "there is no pipeline parallelism; --layout shards every layer"},
    {"context-parallel-size cp parallelism.context-parallel-degree", NULL,
     "there is no context parallelism; the flag +sp of --layout shards activations by tokens"},
    {"overlap-grad-reduce overlap-param-gather tp-comm-overlap "
     "async-tensor-model-parallel-allreduce parallelism.enable-async-tensor-parallel",
     "overlap bulk", "auto searches"},
    {"nproc-per-node num-processes num-gpus gpus n-gpus world-size -pn -np nprocs", "ranks",
     "threads of this process; mpirun -n N or srun starts processes"},
    {"nnodes nodes -pr -pg node-rank local-rank master-addr master-port rank rdzv-endpoint -pi -pf "
     "-pm -ps -pp",
     NULL, LAUNCHER},
    {"comm.init-timeout-seconds distributed-timeout-minutes ddp-timeout", "timeout S",
     "in seconds"},

    /* evaluation and sampling */
    {"eval-interval -v val-loss-every eval-steps validator.freq validation.freq val-every "
     "val-interval evaluation-interval",
     "eval-every", NULL},
    {"eval-iters -m val-max-steps validator.steps validation.steps val-steps max-eval-samples "
     "val-batches",
     "eval-batches", NULL},
    {"eval-only do-eval evaluate", "val GLOB", "with --init and without --train it evaluates"},
    {"eval-strategy evaluation-strategy", "eval-every", NULL},
    {"-s sample-interval generate-every", "sample-every", NULL},
    {"-g gent max-new-tokens sample-length genT num-tokens-to-generate", "sample-tokens", NULL},
    {"start text-prompt", "prompt", NULL},
    {"num-samples num-return-sequences", "samples", NULL},
    {"do-sample", NULL, "samples are random unless --temperature is 0"},

    /* checkpoints and records */
    {"out-dir out output output-dir -o checkpoint-dir save-dir ckpt-dir checkpoint.folder "
     "job.dump-folder output-log-dir checkpoints-path",
     "save", NULL},
    {"save-interval -n save-steps checkpoint-every checkpoint.interval ckpt-every save-frequency "
     "checkpoint-interval",
     "save-every", NULL},
    {"load-best-model-at-end save-best-only", "save-best", NULL},
    {"-nk save-total-limit checkpoint.keep-latest-k keep-last", "keep", NULL},
    {"-nm", "keep-every N", "in steps"},
    {"-y resume-from-checkpoint load checkpoint.load-step resume-from auto-resume", "resume",
     "it goes on from the newest checkpoint in --save"},
    {"always-save-checkpoint save-strategy overwrite-output-dir no-save-optim no-load-optim "
     "finetune checkpoint.enable",
     "save DIR", "every --save-every steps; from other weights: --init"},
    {"log-interval logging-steps metrics.log-freq log-freq print-every print-interval", "log-every",
     NULL},
    {"tensorboard-dir logging-dir tensorboard-log metrics.save-tb-folder "
     "metrics.enable-tensorboard",
     "tensorboard", NULL},
    {"wandb wandb-log wandb-project wandb-run-name wandb-entity report-to run-name use-wandb "
     "metrics.enable-wandb push-to-hub hub-model-id mlflow",
     NULL, ONLY_HERE},
    {"log-file log logfile log-dir", "json FILE", "or --csv, --tensorboard"},
    {"-lg verbose quiet log-level", NULL, "--log-every N prints fewer lines, --json has all"},
    {"profiling.enable-profiling profiler use-pytorch-profiler profile-step-start", "profile",
     NULL},
    {"dry-run fake-process-group", "memory",
     "--plan prints the best layouts, --listing the operations of a step"},
    {"print-config", NULL, "the first line of --json has all options"},
    {"config-file job.config-file conf cfg args-file", "config", NULL},
    {0}};
