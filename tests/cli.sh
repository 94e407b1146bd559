#!/bin/bash
# cli.sh: every mistake on a command line gives exactly one line on stderr that names it, and a
# status that is not 0. Run from the top of the tree after `make`; PROGRAMS names another folder of
# programs.
set -u
. tests/common.sh
top=$PWD
programs=${PROGRAMS:-$PWD/build}
dir=$(mktemp -d)
# not in a child that is killed before it becomes a program
trap 'if [ $BASHPID = $$ ]; then rm -rf "$dir"; fi' EXIT
cd "$dir" || exit 1
export XDG_CACHE_HOME=$dir # what runs leave for others
passed=0 failed=0

fail() {
    echo "FAIL $1: $2"
    sed 's/^/     /' err | head -5
    failed=$((failed + 1))
}
# refuses NAME STATUS WORDS COMMAND...: one line on stderr that contains WORDS, that exit status.
# Warnings do not count: that ranks share cores, or that one is slow, is said of a busy machine.
refuses() {
    local name=$1 want=$2 words=$3 status lines
    shift 3
    timeout 60 "$@" >out 2>err
    status=$?
    lines=$(grep -vc ": warning: " err)
    if [ $status != "$want" ]; then fail "$name" "status $status, not $want"
    elif [ "$lines" != 1 ]; then fail "$name" "$lines lines on stderr"
    elif ! grep -qF -- "$words" err; then fail "$name" "the line lacks \"$words\""
    elif grep -q '\.c:[0-9]* ' err; then fail "$name" "a source position helps no user"
    else passed=$((passed + 1))
    fi
}
# refuses_early: and no step was trained before.
refuses_early() {
    refuses "$@"
    if grep -q '^step' out; then fail "$1" "it trained first"; fi
}
# works NAME COMMAND...: status 0.
works() {
    local name=$1
    shift
    if timeout 60 "$@" >out 2>err; then passed=$((passed + 1)); else fail "$name" "status $?"; fi
}
shard good.bin 20240520 1 2000 2000
printf 'GIF89a' >picture.bin && head -c 3001 /dev/zero >>picture.bin
model=layers=2,heads=2,channels=16,seq=16,vocab=64
train=("$programs/train_gpt" --train good.bin --model $model --micro 2 --steps 4 --eval-every 0
    --threads 1)

works "a run" "${train[@]}" --save ckpt --json log.jsonl --csv log.csv \
    --tensorboard board
works "ranks and threads where a stack is small" bash -c 'ulimit -s 100; exec "$@"' - \
    "${train[@]}" --ranks 2 --threads 2
works "a batch in units of 1024" "${train[@]}" --batch 0.5Ki --steps 1
refuses "mistyped option" 2 "did you mean --steps?" "${train[@]}" --stesp 3
for tool in "$top"/tools/*.c; do
    tool=$(basename "$tool" .c)
    [[ $tool != bench_gpu* ]] || continue
    refuses "a mistyped option of $tool" 2 "$tool: unknown option --stesp" "$programs/$tool" \
        --stesp 3
done
refuses "an option of nanoGPT" 2 "--learning_rate: here it is --lr 1e-3" "${train[@]}" \
    --learning_rate=1e-3
refuses "an option of llm.c" 2 "-b: here it is --micro 4 (" "${train[@]}" -b 4
refuses "a size of Megatron-LM's" 2 "here it is --layout x4 (" "${train[@]}" \
    --tensor-model-parallel-size 4
refuses "an option that nobody has here" 2 "--dropout: not supported: " "${train[@]}" --dropout 0.1
printf 'train = good.bin\nmodel = %s # small\nmicro: 2\nsteps 9\nthreads=1\neval-every=0' $model \
    >opt.conf
works "options from a file, and the command line wins" "$programs/train_gpt" --steps 1 --steps 4 \
    --config opt.conf --json conf.jsonl
losses() { grep -o '"loss":[^,]*' "$1"; }
works "they train the same" test "$(losses conf.jsonl)" = "$(losses log.jsonl)"
works "the record of a run" "$programs/train_gpt" --config log.jsonl --save again \
    --json again.jsonl --no-resume
works "it trains the same" test "$(losses again.jsonl)" = "$(losses log.jsonl)"
works "the record of a checkpoint" "$programs/train_gpt" --config ckpt/step_00000004 --save third \
    --json third.jsonl
works "it trains the same, too" test "$(losses third.jsonl)" = "$(losses log.jsonl)"
refuses "a record that would be written over" 2 "that file is an input (log.jsonl)" \
    "$programs/train_gpt" --config log.jsonl --save fourth
refuses "a file of options that is not there" 2 "cannot read nowhere.conf" "$programs/train_gpt" \
    --config nowhere.conf
works "a version" "$programs/train_gpt" --version
works "its lines" test "$(cut -d' ' -f1 out | tr '\n' ' ')" = "train_gpt kernels MPI CUDA "
works "a tool's version" "$programs/report" --version
works "lines of some steps" "${train[@]}" --log-every 3
works "which are the first, the third and the last" test "$(grep -c '^step' out)" = 3
refuses "unknown pass" 2 "none|build|differentiate|recompute" "${train[@]}" --listing fused
works "a listing" "$programs/train_gpt" --listing build --model $model --ranks 2 --layout x2
works "a listing of panels" "$programs/train_gpt" --listing panels --model $model --ranks 2 \
    --layout x2+stay=y
works "which has them" test "$(grep -c "broadcast x\[1\]" out)" -gt 0
works "a listing of the order" "$programs/train_gpt" --listing --model $model --ranks 2 \
    --layout x2 --cluster h100:1
works "a listing of ranks that are not here" "$programs/train_gpt" --listing --model $model \
    --layout d2.x4+sp --cluster h100:1
works "it is of eight ranks" test "$(grep -c 'reduce_scatter x' out)" -gt 0
works "a matmul explained" "$programs/train_gpt" --explain-matmul 768,768,4096,wgrad \
    --cluster h200:1
refuses "a matmul explained as JSON" 2 "has no --json" "$programs/train_gpt" \
    --explain-matmul 768,768,4096 --cluster h200:1 --json out.json
refuses "a matmul of two sizes" 2 "M,N,K or M,N,K,wgrad is needed" "$programs/train_gpt" \
    --explain-matmul 768,768 --cluster h200:1
refuses "a matmul explained on no cluster" 2 "requires --cluster, like --cluster h200:1" \
    "$programs/train_gpt" --explain-matmul 768,768,768
refuses "a matmul explained on processors" 2 "has no GPUs whose multiprocessors are known" \
    "$programs/train_gpt" --explain-matmul 768,768,768 --cluster cpu:1
refuses "a listing of ranks that no cluster has" 2 "h100:1 has 8 ranks, --layout x16 needs 16" \
    "$programs/train_gpt" --listing --model $model --layout x16 --cluster h100:1
refuses "a listing of no layout" 2 'layout "x2foo", column 3' "$programs/train_gpt" --listing \
    --model $model --layout x2foo --cluster h100:1
works "a listing of halves" "$programs/train_gpt" --listing --model $model --micro 4 --ranks 2 \
    --layout x2 --overlap halves
works "of 2 x 16 tokens" test "$(grep -c 'forw .* @32 .* embedding' out)" = 1
refuses "a mistake at the end of a long --model" 2 "heads" "$programs/train_gpt" \
    --train good.bin --model "$(printf 'layers=2,%.0s' {1..500})haeds=2"
refuses "a model by its name elsewhere" 2 'unknown word "gpt2-xl", did you mean "d48"?' \
    "$programs/train_gpt" --train good.bin --model gpt2-xl
refuses "text in place of tokens" 1 "but text: gpt-tokenize encode makes tokens of it" \
    "$programs/train_gpt" --train opt.conf --model $model
refuses "batch is no multiple" 2 "no multiple" "${train[@]}" --batch 33
refuses "a batch that is less than a micro-batch" 2 "= 32; the next is 32" "${train[@]}" --batch 16
refuses "a batch that is less than the default" 2 "the default --micro 4" "$programs/train_gpt" \
    --train good.bin --model $model --batch 16
refuses "fragments that find no step" 2 "--fragments 5 needs --sync-every" "${train[@]}" \
    --sync-every 4 --fragments 5
refuses "an outer loop without its steps" 2 "--sync-every" "${train[@]}" --outer-momentum 0.9
refuses "an outer rate without its steps" 2 "--sync-every" "${train[@]}" --outer-lr 0.7
refuses "replicas that share one state" 2 "zero1 shards the state of one model" "${train[@]}" \
    --ranks 2 --layout d2+zero1 --sync-every 4
refuses "a check that is to save" 2 "leave out --save" "${train[@]}" --ranks 2 --layout x2 \
    --check-tp 1 --save checked
refuses "replicas with unequal shares" 2 "equal shares" "${train[@]}" --ranks 2 --batch 96 \
    --sync-every 4
refuses "replicas and one sequence" 2 "of 1 sequence" "${train[@]:0:5}" --micro 1 --steps 4 \
    --ranks 2 --layout auto --batch 16 \
    --calibrate none --sync-every 4
refuses "replicas and one sequence, by layout" 2 \
    " 1 sequence is no multiple of 2 data-parallel ranks" "$programs/train_gpt" --train good.bin \
    --model $model \
    --steps 2 --micro 1 --ranks 2 --layout d2 --batch 16 --sync-every 4
refuses "halves of one sequence, and nothing else to choose" 1 \
    "no layout of 2 ranks has what is asked for" "$programs/train_gpt" --plan \
    --train good.bin --model $model --ranks 2 --layout d2 --batch 32 --calibrate none \
    --overlap halves
refuses "a model that fits nowhere" 1 "no layout of 2 ranks fits" "$programs/train_gpt" \
    --train good.bin --ranks 2 --layout auto --calibrate again \
    --model layers=96,heads=96,channels=12288,seq=2048,vocab=50257
if grep -q measur out; then fail "a model that fits nowhere" "it measured first"; fi
refuses "a GPU that is not here" 2 "--backend cuda: " "${train[@]}" --backend cuda
refuses "a GPU for sums of integers" 2 "--backend cuda: --exact has no CUDA kernels" "${train[@]}" \
    --backend cuda --exact
refuses "a trace of nothing" 2 "--trace requires --train" "$programs/train_gpt" --init . \
    --prompt a --trace trace.json
refuses "a trace and a profile" 2 "excludes --profile" "${train[@]}" --trace trace.json --profile
refuses_early "a trace that cannot be written" 1 "nowhere/trace.json" "${train[@]}" \
    --trace nowhere/trace.json
echo '{}' >other.json
works "a trace of two ranks" "${train[@]}" --ranks 2 --layout d2 --trace trace.json
if grep -q "trace.json, for ui.perfetto.dev and gpt-timeline" out; then passed=$((passed + 1))
else fail "a trace and who reads it" "the tool has another name"; fi
works "the E of a trace" test "$(grep -c 'ms      E$' out)" = 1
if ! tail -n 1 trace.json | grep -q '"layout":"d2"'; then fail "a trace of two ranks" \
    "it is not whole"; fi
refuses "a picture of no file" 2 "no file: gpt-timeline FILE" "$programs/timeline" --width 70
refuses "a picture of nothing" 1 "nowhere.json" "$programs/timeline" nowhere.json
refuses "a picture of something else" 1 "no \"traceEvents\"" "$programs/timeline" other.json
works "a picture" "$programs/timeline" trace.json --step overlap
# Weights that are not finite are an error, not a result.
tiny=("$programs/train_gpt" --train good.bin --model layers=1,heads=1,channels=8,seq=16,vocab=257
    --micro 2 --threads 1 --eval-every 0)
works "a model to spoil" "${tiny[@]}" --steps 1 --export-hf spoilt
printf '\x00\x00\xc0\x7f' | dd of=spoilt/model.safetensors bs=1 \
    seek=$(($(stat -c %s spoilt/model.safetensors) - 4)) conv=notrunc status=none
spoilt=("$programs/train_gpt" --init spoilt --micro 2 --threads 1)
refuses "validation that is not a number" 1 \
    "the validation loss is not a number; first tensor that is not finite: parameter" \
    "${spoilt[@]}" --val good.bin
refuses "a sample that is not a number" 1 \
    "a logit of a sample is not a number; first tensor that is not finite: parameter" \
    "${spoilt[@]}" --tokenizer bytes --prompt a
refuses "the same on ranks" 1 "is not finite: parameter" "${spoilt[@]}" --val good.bin --ranks 2 \
    --layout x2
refuses "no model and nothing to train it on" 2 "nothing to do: --train GLOB trains" \
    "$programs/train_gpt" --val good.bin
refuses "a model and nothing to do with it" 2 "nothing to do with --init ckpt" \
    "$programs/train_gpt" --init ckpt --steps 100 --save tuned
# No prompt is a prompt: the sample begins as a document does.
works "a sample of no prompt" "$programs/train_gpt" --init ckpt --prompt "" --threads 1 \
    --sample-tokens 3
works "which is all that is printed" test "$(wc -w <out)" = 3
# An export is complete: whoever gets the folder needs no other.
printf 'one two' >words.txt
works "a tokenizer of no pairs" "$programs/tokenize" train --text words.txt --vocab 257 --out signs
works "a vocabulary in new folders" "$programs/tokenize" train --text words.txt --vocab 257 \
    --out new/signs
works "it is there" test -s new/signs/vocab.json
saved=("$programs/tokenize" convert --tokenizer signs --out)
works "another one in new folders" "${saved[@]}" new/more/signs
works "it is there, too" cmp signs/merges.txt new/more/signs/merges.txt
refuses "a vocabulary where a file is" 1 "--out: words.txt is not a folder" \
    "$programs/tokenize" train --text words.txt --out words.txt
works "an export of a run with a tokenizer" "${tiny[@]}" --steps 1 --tokenizer signs \
    --export-hf given
works "it is a model with its tokenizer" "$programs/train_gpt" --init given --prompt a --threads 1
works "it knows how documents end" grep -q '"eos_token_id": *256\b' given/config.json
works "its tokenizer is the file of the run" cmp signs/vocab.json given/vocab.json
small=$top/tests/golden/tokenizer/tokenizer.json
saves=("$programs/tokenize" convert --out saved --tokenizer)
refuses "a tokenizer without merges" 1 "it holds no merges" "${saves[@]}" signs/gpt2_tokenizer.bin
refuses "to encode with it" 1 "can only decode" "$programs/tokenize" encode --text words.txt \
    --tokenizer signs/gpt2_tokenizer.bin
for change in 's/regex":true/regex":false/' 's/space":false/space":true/'; do
    sed "$change" "$small" >more.json
    refuses "a tokenizer that is more than its pairs" 1 "have no place for" "${saves[@]}" more.json
done
sed 's/"added_tokens"/"none"/' "$small" >endless.json
works "a tokenizer without an end of text" "${saves[@]}" endless.json
works "which llm.c's file cannot hold" test "$(grep -c 'bin is not written' err)" = 1
printf '{}' | tee saved/vocab.json >saved/tokenizer.json
refuses "a damaged pair" 1 "vocab.json and saved/merges.txt: merge 1" "${saves[@]}" saved
rm saved/vocab.json
refuses "a damaged tokenizer.json" 1 'saved/tokenizer.json: no "model"' "${saves[@]}" saved
touch few_train_000002.bin
works "shards" "$programs/tokenize" encode --text words.txt --val-tokens 1 --shard-tokens 4 \
    --out few
works "one more is there" test "$(grep -c 'train_000002.bin is there from an earlier' err)" = 1
works "an export into its own tokenizer" "${tiny[@]}" --steps 1 --tokenizer given --export-hf given
rm given/config.json
refuses "weights of another shape without a description" 1 \
    "; given has no config.json, so the shape is that of --model" "$programs/train_gpt" \
    --init given --val good.bin --model layers=2,heads=1,channels=8,seq=16,vocab=257
# skips loss|norm: the values of "were the weights left alone? was the step skipped?" of steps that
# follow on 128 others.
skips() {
    local run=("${train[@]}" --save "$1" --lr 1e-5 --steps) step skipped same
    "${run[@]}" 128 >out 2>err
    "${run[@]}" 140 --resume --save-every 1 --keep 20 --skip-"$1"-z 1e-3 --csv "$1.csv" >out 2>err
    tail -n +2 "$1.csv" | while IFS=, read -r step _ _ _ _ _ _ _ _ _ skipped _; do
        cmp -s "$(printf '%s/step_%08d/model.safetensors' "$1" $((step - 1)))" \
            "$(printf '%s/step_%08d/model.safetensors' "$1" "$step")"
        same=$((1 - $?))
        echo "$same$skipped"
    done | sort -u | tr '\n' ' '
}
works "a loss above others changes no weight" test "$(skips loss)" = "00 11 "
works "a norm above others changes no weight" test "$(skips norm)" = "00 11 "
replicas=("${train[@]}" --ranks 2 --layout d2 --sync-every 3)
works "an export of replicas" "${replicas[@]}" --export-hf mean
works "a checkpoint of them" "${replicas[@]}" --save means
works "both are their mean" cmp mean/model.safetensors means/step_00000004/model.safetensors
works "evaluations of replicas" "${replicas[@]}" --steps 6 --val good.bin --eval-every 1
works "in steps 3 to 5 they are of the same mean" \
    test "$(grep -c ": val $(grep -o 'step 3: val .*' out | cut -d' ' -f4-)" out)" = 3
# Before the first step: what takes hours, and a vocabulary that the data do not use.
says_early() { # NAME WORDS OPTIONS...: no step is made
    local name=$1 words=$2
    shift 2
    : >early # the child empties it when it starts, and may be late
    timeout -s TERM 90 "$programs/train_gpt" --train good.bin --threads 1 --eval-every 0 "$@" \
        >>early 2>err &
    comes grep -qF -- "$words" early
    kill $! && wait $!
    works "$name" grep -qF -- "$words" early
}
works "a folder of checkpoints" "$programs/inspect" ckpt
works "its newest one" \
    test "$(grep -c 'step_00000004: checkpoint\|4 steps, 128 tokens\|as it was written' out)" = 3
works "a folder of a model" "$programs/inspect" spoilt
mkdir empty
refuses "a folder of nothing" 1 "without a checkpoint, a model, a tokenizer or tokens" \
    "$programs/inspect" empty
cp -r ckpt hurt
printf X | dd of=hurt/step_00000004/train_state.json bs=1 seek=100 conv=notrunc status=none
for command in "$programs/inspect hurt" "${train[*]} --save hurt --resume"; do
    # shellcheck disable=SC2086
    refuses "a damaged state of a run" 1 "train_state.json is damaged: checksum" $command
done
mkdir -p loop/step_00000001 && ln -s checkpoint.json loop/step_00000001/checkpoint.json
refuses "a checkpoint that cannot be read" 1 "checkpoint.json: Too many levels of symbolic links" \
    "$programs/inspect" loop
refuses "a part of a model" 1 "name its folder" "$programs/inspect" spoilt/config.json
# Completion in bash asks the programs themselves.
completes() { # WORDS COMMAND...: what the last of the command's arguments may become
    local words=$1
    shift
    . "$top/tools/completion.bash"
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _train_gpt "$1"
    works "completion of $*" test "${COMPREPLY[*]}" = "$words"
}
completes "cpu cuda" "$programs/train_gpt" --backend c
completes "--save --save-every" "$programs/train_gpt" --sav
completes "train encode hellaswag decode info convert" "$programs/tokenize" ""
completes "--text" "$programs/tokenize" encode --te
completes "--out" "$programs/report" log.jsonl --o
says_early "hours" "a smaller --batch or --model take less" --model $model --steps 1000000000
says_early "hours of GPT-2" "no --model is GPT-2 124M; try --model d6" --steps 1000000000 \
    --micro 1 --seq 16
says_early "a vocabulary of others" \
    "no id of the first 2000 tokens is above 60, and the vocabulary has 5000" --steps 100000 \
    --model layers=1,heads=1,channels=8,seq=16,vocab=5000
says_early "a rate that rises" "--min-lr 0.01 is more than --lr 0.001: the rate rises" \
    --model $model --steps 100000000 --lr 1e-3 --min-lr 1e-2
says_early "a warm-up that has no end" "--warmup 2000000000 is more than --steps 1000000000" \
    --model $model --steps 1000000000 --warmup 2000000000
works "a vocabulary that is the tokenizer's" "$programs/train_gpt" --train good.bin --micro 1 \
    --tokenizer bytes --memory
works "the weights of 257 tokens, not of 50257" \
    test "$(awk '/parameters/ { print int($2) }' out)" = 328
refuses "missing shard" 1 "nowhere.bin" "$programs/train_gpt" --train nowhere.bin --model $model
refuses "missing weights" 1 "nowhere" "${train[@]}" --init nowhere.bin
refuses "weights that are none" 1 "picture.bin" "${train[@]}" --init picture.bin
refuses "missing tokenizer" 1 "nowhere" "${train[@]}" --tokenizer nowhere
refuses "a tokenizer of more tokens" 2 "bytes has 257 tokens, the model's vocabulary 64" \
    "${train[@]}" --tokenizer bytes
refuses "more positions than the model has" 2 "--seq 32 is more than the model's 16 positions" \
    "${train[@]}" --seq 32
refuses "folder holds a run" 1 "--resume" "${train[@]}" --save ckpt
refuses "resume without a folder" 2 "--save" "${train[@]}" --resume
refuses "log in a folder that is not there" 1 "nowhere/log" "${train[@]}" --json nowhere/log.jsonl
refuses_early "a file where checkpoints should go" 1 "good.bin" "${train[@]}" --save good.bin
refuses_early "a file where the export should go" 1 "good.bin" "${train[@]}" --export-hf good.bin
refuses_early "an export in a folder that is not there" 1 "nowhere/x.bin" "${train[@]}" \
    --export-llmc nowhere/x.bin
refuses_early "a model that llm.c's file cannot hold" 1 "cannot hold" "$programs/train_gpt" \
    --train good.bin --micro 2 --threads 1 \
    --model llama,layers=1,heads=2,channels=16,seq=16,vocab=64 --export-llmc x.bin --steps 2
refuses "a bad step right after a checkpoint" 1 "move it away" "${train[@]}" --lr 1e6 --clip 0 \
    --save bad --save-every 1
ranks() { # RANKS LAYOUT WORDS: a mesh that cannot be
    refuses_early "--ranks $1 --layout $2" 2 "$3" "${train[@]}" --ranks "$1" --layout "$2"
    if grep -q 'rank [0-9]*:' err; then fail "--ranks $1 --layout $2" "a rank is named"; fi
}
ranks -1 auto "--ranks must be between 0 and 4096"
ranks 5000 auto "--ranks must be between 0 and 4096"
refuses_early "halves of one sequence" 2 "an even --micro" "${train[@]:0:5}" --ranks 2 --layout x2 \
    --micro 1 --overlap bulk+halves
ranks 1 x2 "layout: x2 makes 2 ranks, there is 1"
ranks 0 x2.y2 "layout: x2.y2 makes 4 ranks, there is 1"
refuses_early "a batch on ranks" 2 "no multiple of a micro-batch" "${train[@]}" --ranks 3 \
    --layout dp --batch 40
refuses_early "a prompt without a tokenizer on ranks" 2 "--prompt needs" "${train[@]}" --ranks 3 \
    --prompt word
refuses_early "ranks and no number" 2 "--ranks takes" "${train[@]}" --ranks four
refuses_early "more ranks than threads can be" 2 "at most" "${train[@]}" --ranks 2000
escapes() { # OPTIONS...: how many lines have an escape, with a terminal as standard output
    script -qec "$(printf '%q ' env TERM=xterm "$@")" /dev/null </dev/null | grep -c $'\033'
}
if command -v script >/dev/null; then
    works "a bar on a terminal" test "$(escapes "${train[@]}")" -gt 0
    works "none if it is not wanted" test "$(escapes "${train[@]}" --progress none)" = 0
    # a shell lets its children ignore Ctrl-C; exec, so that no shell stands before train_gpt
    timeout 60 script -qec "exec $(printf '%q ' env --default-signal=INT "${train[@]}" \
        --steps 100000000 --csv pressed.csv)" /dev/null >pressed </dev/null &
    if comes grep -qs '^3,' pressed.csv; then kill -INT "$(pgrep -P "$(pgrep -P $!)")"; fi
    wait $!
    works "Ctrl-C is answered at once" grep -q 'stopping soon; Ctrl-C again ends at once' pressed
fi
# Under a launcher the first process alone has the line.
refuses "mistyped option under a launcher" 2 "did you mean --steps?" env OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_RANK=0 "${train[@]}" --stesp 3
refuses "exact in bf16" 2 "--exact requires --dtype fp32" "${train[@]}" --exact --dtype bf16
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 "${train[@]}" --stesp 3 >out 2>err
[ "$? $(grep -c 'rank 1: .*did you mean --steps?' err)" = "2 1" ] && passed=$((passed + 1)) ||
    fail "the second process of a launcher" "it does not say so alone"
refuses "report of a missing file" 1 "nowhere.jsonl" "$programs/report" nowhere.jsonl
refuses "report of a foreign file" 1 "no JSON lines" "$programs/report" picture.bin
refuses "report of nothing" 2 "no file" "$programs/report"

"${train[@]}" --ranks 4 --layout x2.y2+sp+heads --check-tp 2 >checked
works "a check of a mesh against one rank" grep -qx 'all agree' checked
whatif=("$programs/whatif" --cluster cpu:4 --model $model)
refuses "vary nothing" 2 "--vary is needed" "${whatif[@]}"
refuses "a layout of other ranks" 2 "4" "${whatif[@]}" --vary layers=2..4 --layout x3
refuses "a scheme that is none" 2 "megatron" "${whatif[@]}" --vary layers=2..4 --schemes megatrn
refuses "no such cluster" 2 "Did you mean cpu:4?" "$programs/whatif" --cluster cpuu:4 \
    --vary nodes=1..2
refuses "a file nowhere" 1 "none/x.json" "${whatif[@]}" --vary nodes=1..2 --json none/x.json
works "what if" "${whatif[@]}" --vary network=1..64Gb/s --json x.json
works "a row for each value" \
    test "$(grep -cE ' (┌|│|└|─) ' out) $(grep -o '"value"' x.json | wc -l)" = "7 7"
works "the report" "$programs/report" --out page.html log.jsonl
works "the page" grep -q '</html>' page.html
mkfifo pipe && { timeout 90 cat pipe >piped.html 2>/dev/null & }
works "the page into a pipe" "$programs/report" --out pipe log.jsonl
works "the pipe is still one" test -p pipe
"$programs/train_gpt" --plan --calibrate none --model $model --ranks 3 >plan
works "the ranks' machine" grep -q '^1 node, 3 ranks (threads)' plan
"$programs/train_gpt" --memory --model $model --sample-every 1 >memory
works "without replicas that train apart" test "$(grep -c 'outer loop' memory)" = 0
"$programs/train_gpt" --memory --model $model --sync-every 4 --outer-momentum 0.9 >memory_outer
works "anchor and velocity, as m and v" \
    test "$(awk '/outer loop/ { print $3, $4 }' memory_outer)" = \
    "$(awk '/optimizer/ { print $2, $3 }' memory_outer)"
works "the memory table is of training" grep -q '^  optimizer *[0-9.]*[1-9]' memory
works "with what sampling takes" grep -q '^  sampling *[0-9.]*[1-9]' memory
"${train[@]}" --ranks 2 --layout d2 --json - >out 2>err
works "records on the standard output" \
    test "$(grep -vc '^{.*}$' out) $(grep -c '"loss"' out) $(grep -c '^step' err)" = "0 4 4"
"$programs/train_gpt" --plan --cluster cpu:4 --model $model --json - >out 2>err
works "a plan on the standard output" \
    test "$(wc -l <out) $(grep -c '"layout"' out) $(grep -c '^chosen' err)" = "1 1 1"
"${whatif[@]}" --vary nodes=1..2 --json - >out 2>err
works "what if on the standard output" \
    test "$(wc -l <out) $(grep -c '"points"' out) $(grep -cE ' (┌|│|└|─) ' err)" = "1 1 2"
works "no file of that name" test ! -e ./-
printf '{"time":"now","ranks":2}\nno line\n{"time":"then"}\n\n[1]\n' >torn.jsonl
refuses "a ledger with lines that are none" 1 "torn.jsonl:2: " "$programs/ledger" --file torn.jsonl
works "its good lines" test "$(grep -c '^now\|^then' out)" = 2
refuses "a ledger that is not there" 1 "cannot open nowhere.jsonl" "$programs/ledger" \
    --file nowhere.jsonl
refuses "a ledger that is not there, as JSON" 1 "cannot open nowhere.jsonl" "$programs/ledger" \
    --file nowhere.jsonl --json
refuses "a ledger that is none" 1 "picture.bin:1: " "$programs/ledger" --file picture.bin
# says NAME N WORDS COMMAND...: status 0, and N lines that contain WORDS.
says() {
    local name=$1 n=$2 words=$3
    shift 3
    works "$name" "$@"
    [ "$(cat out err | grep -cF -- "$words")" = "$n" ] ||
        fail "$name" "the words \"$words\" are not in $n lines"
}
plan=("$programs/train_gpt" --plan --cluster cpu:4 --model $model)
refuses "a plan of a batch that a run refuses" 2 "= 32; the nearest are 32 and 64" "${plan[@]}" \
    --micro 2 --batch 48
refuses "a plan of a batch of broken sequences" 2 "--batch 40 tokens is no multiple of --seq 16" \
    "${plan[@]}" --batch 40
refuses "a plan of halves of one sequence" 2 "an even --micro" "${plan[@]}" --micro 1 \
    --overlap halves
refuses "a plan of a layout of other ranks" 2 "x3 makes 3 ranks, there are 4" "${plan[@]}" \
    --layout x3
says "a micro-batch beyond a rank's share" 1 "its only micro-batch is of 1" "${train[@]}" \
    --ranks 2 --layout d2 --batch 32
says "and its plan" 1 "its only micro-batch is of 1" "${plan[@]}" --layout d4 --micro 2 --batch 64
says "a micro-batch of that share" 0 "its only micro-batch" "${train[@]}" --ranks 2 --layout d2 \
    --batch 64
says "a ring of nothing" 1 "--overlap ring does nothing on d2" "${train[@]}" --ranks 2 --layout d2 \
    --overlap bulk+ring
says "and its plan" 1 "--overlap ring does nothing on d4" "${plan[@]}" --layout d4 \
    --overlap bulk+ring
says "fused sums of integers" 1 "--overlap fused does nothing: ranks sum the integers of --exact" \
    "${train[@]}" --ranks 2 --layout x2+sp --exact --overlap fused
says "chunks of nothing" 1 "--overlap chunk does nothing on d2" "${train[@]}" --ranks 2 \
    --layout d2 --overlap chunk=2
says "a ring" 0 "does nothing" "${train[@]}" --ranks 2 --layout x2+sp --overlap bulk+ring
says "a given layout" 1 "overlap bulk (auto of a given layout; --plan prices others)" \
    "${train[@]}" --ranks 2 --layout x2
says "a plan of a given layout" 1 "this plan is --micro" "${plan[@]}" --layout x4+sp --batch 1024
says "a plan of a run as it is" 0 "this plan is --micro" "${plan[@]}" --layout x4+sp --micro 4 \
    --recompute none --overlap bulk
says "a plan of --exact" 1 "Kernels of --exact are priced as" "${plan[@]}" --exact
tries=("${train[@]}" --ranks 2 --layout auto --calibrate none --ledger none --steps 200 --refine 3)
says "replicas that train apart are not moved" 0 "refine:" "${tries[@]}" --sync-every 2
# With --micro 2 a step of 4 sequences is one micro-batch on d2, and two on x2.
works "exact on one rank" "${train[@]}" --steps 200 --batch 64 --exact --json one.jsonl
works "exact on layouts that are tried" "${tries[@]}" --batch 64 --exact --json tried.jsonl
works "which train the same" test "$(losses tried.jsonl)" = "$(losses one.jsonl)"
says "a trace of no overlap" 1 "hides nothing: both steps are the same" "${train[@]}" --ranks 2 \
    --layout d2 --overlap none --trace none.json
works "without E" test "$(grep -c ' E is \|ms      E$' out)" = 0
works "the records" \
    test "$(grep -c '"loss"' log.jsonl) $(wc -l <log.csv)" = "4 5"

full_output=(bash -c '"$@" >/dev/full' -)
works "a run whose lines go to a full disk" "${full_output[@]}" "${train[@]}"
works "one warning says so" test \
    "$(grep -c 'warning: cannot write what is printed: No space left' err)" = 1
refuses "a listing to a full disk" 1 "cannot write the standard output: No space left" \
    "${full_output[@]}" "$programs/train_gpt" --listing --model $model --ranks 2 --layout x2
refuses "a plan to a full disk" 1 "cannot write the standard output: No space left" \
    "${full_output[@]}" "$programs/train_gpt" --plan --model d12 --cluster h100:1
refuses "ids to a full disk" 1 "cannot write the ids" "${full_output[@]}" \
    "$programs/tokenize" encode --text opt.conf
refuses "help to a file over the limit" 1 "cannot write the standard output: File too large" \
    bash -c '(ulimit -f 0; exec "$@" >limited) 2>&1 | cat >&2; exit ${PIPESTATUS[0]}' - \
    "$programs/train_gpt" --help

# What a caller closed has a number that the next file would get, and what is printed would land
# in it.
"${train[@]}" --json closed.jsonl --save closed <&- >&- 2>&- && ! grep -qv '^{' closed.jsonl &&
    passed=$((passed + 1)) ||
    fail "no stream is open" "$(grep -m1 -v '^{' closed.jsonl)"
no_output=(bash -c '"$@" >&-' -)
refuses "records to a closed output" 1 "standard output is not open" "${no_output[@]}" \
    "${train[@]}" --json -
refuses "text to a closed output" 1 "cannot write: Bad file descriptor" "${no_output[@]}" \
    "$programs/corpus" --bytes 1000

# A step that would take minutes keeps no signal waiting; until then the folder is this run's alone.
: >out # the child empties it when it starts, and may be late
"${train[@]:0:3}" --model layers=4,heads=4,channels=128,seq=256,vocab=64 --micro 1 --threads 1 \
    --batch 1048576 --save slow >>out 2>err &
pid=$!
comes grep -q "^note *some .* for 1000 steps" out # the last line before the first step
sleep 0.3
refuses "a folder that another run saves into" 1 "slow/.lock is held by process $pid on" \
    "${train[@]}" --save slow
kill -TERM $pid
for ((i = 0; i < 200; i++)); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
kill -KILL $pid 2>/dev/null && fail "SIGTERM while busy" "it went on after the signal"
wait $pid
works "SIGTERM while busy" test $? = 143

refuses "bench_layouts: a layout of other ranks" 2 "--layouts: layout" "$programs/bench_layouts" \
    --ranks 4 --layouts d2.x2,d3
refuses "bench_layouts: a schedule of nothing" 2 "did you mean bulk" "$programs/bench_layouts" \
    --ranks 4 --layouts d4@bulb
refuses "bench_layouts: a recompute of nothing" 2 "recompute is none, selective or full" \
    "$programs/bench_layouts" --ranks 4 --layouts d4@bulk@half
refuses "bench_layouts: a micro-batch of nothing" 2 "a number from 1, not 0" \
    "$programs/bench_layouts" --ranks 4 --layouts d4@none@none@0
refuses "bench_layouts: halves of one sequence" 2 "halves need an even number" \
    "$programs/bench_layouts" --ranks 4 --layouts x4@halves@none@1
refuses "bench_layouts: no unit" 2 "--units 2,x" "$programs/bench_layouts" --ranks 4 --units 2,x

# What is installed: train_gpt, and the tools under names that no other program has; no benchmarks,
# nothing of the tests.
if [ "$programs" = "$top/build" ]; then
    install=(env -u MAKEFLAGS -u MAKELEVEL make -s -C "$top" DESTDIR="$dir/root" PREFIX=/usr)
    works "an installation" "${install[@]}" install
    pages=root/usr/share/man/man1
    works "its man pages" \
        test "$(ls $pages | wc -l) $(grep -l '^.SH NAME' $pages/* | wc -l)" = "9 9"
    works "its programs" test "$(cd root/usr/bin && echo *)" = \
        "$(echo gpt-{convert,corpus,inspect,ledger,report,timeline,tokenize,whatif} train_gpt)"
    works "they are those of build/bin" diff -r root/usr/bin "$programs/bin"
    works "what was installed goes away" "${install[@]}" uninstall
    works "all of it" test -z "$(find root ! -type d)"
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
