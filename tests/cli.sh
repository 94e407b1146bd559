#!/bin/bash
# cli.sh: tests of the command lines. Every mistake gives exactly one line on stderr, which names
# the mistake, and a status that is not 0. Run from the top of the tree after `make`; PROGRAMS names
# another folder of programs.
set -u
. tests/common.sh
top=$PWD
programs=${PROGRAMS:-$PWD/build}
dir=$(mktemp -d)
# A child that is killed before its exec runs this trap, too: it must not remove the folder.
trap 'if [ $BASHPID = $$ ]; then rm -rf "$dir"; fi' EXIT
cd "$dir" || exit 1
export PATH=$programs:$PATH
export XDG_CACHE_HOME=$dir # runs of this script share a cache of their own
passed=0 failed=0

fail() {
    echo "FAIL $1: $2"
    sed 's/^/     /' err | head -5
    failed=$((failed + 1))
}
# refuses STATUS WORDS COMMAND...: the command must exit with STATUS and print one line on stderr,
# which contains WORDS. Warnings are not counted: a busy machine causes some, such as a slow rank.
refuses() {
    local want=$1 words=$2 name="\"$2\"" status lines
    shift 2
    timeout 60 "$@" >out 2>err
    status=$?
    lines=$(grep -vc ": warning: " err)
    if [ $status != "$want" ]; then fail "$name" "status $status, not $want: $*"
    elif [ "$lines" != 1 ]; then fail "$name" "$lines lines on stderr: $*"
    elif ! grep -qF -- "$words" err; then fail "$name" "the line lacks that: $*"
    elif grep -q '\.c:[0-9]* ' err; then fail "$name" "a source position helps no user"
    else passed=$((passed + 1))
    fi
}
# refuses_early: as refuses; the command must fail before it trains a step.
refuses_early() {
    refuses "$@"
    if grep -q '^step' out; then fail "$2" "it trained first"; fi
}
# works NAME COMMAND...: the command must exit with status 0.
works() {
    local name=$1
    shift
    if timeout 60 "$@" >out 2>err; then passed=$((passed + 1)); else fail "$name" "status $?"; fi
}
# says N WORDS COMMAND...: the command must exit with status 0 and print N lines that match WORDS, a
# regular expression.
says() {
    local n=$1 words=$2 found
    shift 2
    works "\"$words\"" "$@"
    found=$(cat out err | grep -c -- "$words")
    [ "$found" = "$n" ] || fail "\"$words\"" "in $found lines, not $n: $*"
}
shard good.bin 20240520 1 2000 2000
printf 'GIF89a' >picture.bin && head -c 3001 /dev/zero >>picture.bin
model=layers=2,heads=2,channels=16,seq=16,vocab=64
train=(train_gpt --train good.bin --model $model --micro 2 --steps 4 --eval-every 0
    --threads 1)

works "a run" "${train[@]}" --save ckpt --json log.jsonl --csv log.csv --tensorboard board
works "ranks and threads where a stack is small" bash -c 'ulimit -s 100; exec "$@"' - \
    "${train[@]}" --ranks 2 --threads 2
refuses 1 "raise the limit of processes or of memory" bash -c 'ulimit -v 300000; exec "$@"' - \
    "${train[@]}" --ranks 64 --batch 2048
refuses 1 "of parameters: Cannot allocate memory; raise the limit" \
    bash -c 'ulimit -v 450000; exec "$@"' - train_gpt --train good.bin --model d12 --threads 1
works "a batch in units of 1024" "${train[@]}" --batch 0.5Ki --steps 1
refuses 2 "did you mean --steps?" "${train[@]}" --stesp 3
refuses 2 "--eps must be between 1e-37" "${train[@]}" --steps 1 --eps 0
for tool in "$top"/tools/*.c; do
    tool=$(basename "$tool" .c)
    [[ $tool != bench_gpu* ]] || continue
    refuses 2 "$tool: unknown option --stesp" "$tool" --stesp 3
done
refuses 2 "--model is empty: NAME|k=v,... is needed" "${train[@]}" --model=
refuses 2 "--save-best requires --save and --val" "${train[@]}" --steps 1 --save s --save-best
refuses 2 "--kernels is empty: SET is needed" "${train[@]}" --kernels ""
works "an empty value of an option without default" "${train[@]}" --steps 1 --json= --prompt ""
refuses 2 "--learning_rate: here it is --lr 1e-3" "${train[@]}" --learning_rate=1e-3
refuses 2 "-b: here it is --micro 4 (" "${train[@]}" -b 4
refuses 2 "here it is --layout x4 (" "${train[@]}" --tensor-model-parallel-size 4
refuses 2 "--dropout: not supported: " "${train[@]}" --dropout 0.1
printf 'train = good.bin\nmodel = %s # small\nmicro: 2\nsteps 9\nthreads=1\neval-every=0' $model \
    >opt.conf
works "options from a file, and the command line wins" train_gpt --steps 1 --steps 4 \
    --config opt.conf --json conf.jsonl
losses() { grep -o '"loss":[^,]*' "$1"; }
works "they train the same" test "$(losses conf.jsonl)" = "$(losses log.jsonl)"
works "the record of a run" train_gpt --config log.jsonl --save again --json again.jsonl --no-resume
works "it trains the same" test "$(losses again.jsonl)" = "$(losses log.jsonl)"
works "the record of a checkpoint" train_gpt --config ckpt/step_00000004 --save third \
    --json third.jsonl
works "it trains the same, too" test "$(losses third.jsonl)" = "$(losses log.jsonl)"
refuses 2 "that file is an input (log.jsonl)" train_gpt --config log.jsonl --save fourth
works "a question beside the command of a finished run" train_gpt --config third.jsonl --memory \
    --json '' --csv ''
refuses 2 "nothing to resume; name another one" train_gpt --config third.jsonl --resume \
    --save nowhere
works "the record that it continues" train_gpt --config third.jsonl --resume --steps 6 --csv ''
works "it is one record" test "$(grep -c '"loss"' third.jsonl)" = 6
refuses 2 "cannot read nowhere.conf" train_gpt --config nowhere.conf
works "a version" train_gpt --version
works "its lines" test "$(cut -d' ' -f1 out | tr '\n' ' ')" = "train_gpt kernels MPI CUDA "
works "a tool's version" report --version
if git -C "$top" rev-parse HEAD >/dev/null 2>&1; then
    git -C "$top" archive --worktree-attributes HEAD base/version.c | tar -xO >archived.c
    works "the commit in an archive" grep -q "\"$(git -C "$top" log -1 --format=%h)\"" archived.c
fi
says 3 '^step' "${train[@]}" --log-every 3 # the first, the third and the last
refuses 2 "none|build|differentiate|recompute" "${train[@]}" --listing fused
works "a listing of a model that does not fit" train_gpt --listing --model d12 --micro 2000
works "a listing" train_gpt --listing build --model $model --ranks 2 --layout x2
says 8 'broadcast x\[1\]' train_gpt --listing panels --model $model --ranks 2 --layout x2+stay=y
works "a listing of the order" train_gpt --listing --model $model --ranks 2 \
    --layout x2 --cluster h100:1
says 6 'reduce_scatter x' train_gpt --listing --model $model --layout d2.x4+sp --cluster h100:1
says 2 'of 2, layout x2, overlap bulk' train_gpt --listing --model $model --layout x2 \
    --cluster h100:1
says 0 ' f32 ' train_gpt --listing --model $model --layout x2 --cluster cpu:2 --dtype bf16
works "a matmul explained" train_gpt --explain-matmul 768,768,4096,wgrad --cluster h200:1
refuses 2 "has no --json" train_gpt --explain-matmul 768,768,4096 --cluster h200:1 --json out.json
refuses 2 "M,N,K or M,N,K,wgrad is needed" train_gpt --explain-matmul 768,768 --cluster h200:1
refuses 2 "requires --cluster, like --cluster h200:1" train_gpt --explain-matmul 768,768,768
refuses 2 "has no GPUs whose multiprocessors are known" train_gpt --explain-matmul 768,768,768 \
    --cluster cpu:1
refuses 2 "h100:1 has 8 ranks, --layout x16 needs 16" train_gpt --listing --model $model \
    --layout x16 --cluster h100:1
refuses 2 'layout "x2foo", column 3' train_gpt --listing --model $model --layout x2foo \
    --cluster h100:1
says 1 'forw .* @32 .* embedding' train_gpt --listing --model $model --micro 4 --ranks 2 \
    --layout x2 --overlap halves # of 2 x 16 tokens
refuses 2 "heads" train_gpt --train good.bin --model "$(printf 'layers=2,%.0s' {1..500})haeds=2"
refuses 2 'unknown model "gpt2-xl", did you mean "d48"?' train_gpt --train good.bin --model gpt2-xl
refuses 2 'unknown key "n_embd": the keys are layers heads' train_gpt --train good.bin \
    --model n_embd=768
refuses 1 "but text: gpt-tokenize encode makes tokens of it" train_gpt --train opt.conf \
    --model $model
refuses 2 "--batch 33 tokens is no multiple of --seq 16" "${train[@]}" --batch 33
refuses 2 "--fragments 5 needs --sync-every" "${train[@]}" --sync-every 4 --fragments 5
refuses 2 "--sync-every" "${train[@]}" --outer-momentum 0.9
refuses 2 "--sync-every" "${train[@]}" --outer-lr 0.7
refuses 2 "zero1 shards the state of one model" "${train[@]}" --ranks 2 --layout d2+zero1 \
    --sync-every 4
for files in --save --export-hf --export-llmc --json --csv --tensorboard --trace; do
    refuses 2 "leave out $files" "${train[@]}" --ranks 2 --layout x2 --check-tp 1 $files checked
done
refuses 2 "leave out --save --json --csv (an empty" "${train[@]}" --ranks 2 --check-tp 1 \
    --save checked --csv checked.csv --json checked.json
echo 'csv = recorded.csv' >records.txt
works "an empty value takes an option of a file back" "${train[@]}" --ranks 2 --layout x2 \
    --check-tp 1 --config records.txt --csv ''
refuses 2 "print and exit: give one" "${train[@]}" --plan --memory
refuses 2 "print and exit: give one" train_gpt --explain-matmul 8,8,8 --listing
refuses 2 "equal shares" "${train[@]}" --ranks 2 --batch 96 --sync-every 4
refuses 2 "divides 1 sequence equally" "${train[@]:0:5}" --micro 1 --steps 4 --ranks 2 \
    --layout auto --batch 16 --calibrate none --sync-every 4
refuses 2 " 1 sequence is no multiple of 2 data-parallel ranks" train_gpt --train good.bin \
    --model $model --steps 2 --micro 1 --ranks 2 --layout d2 --batch 16 --sync-every 4
refuses 1 "no layout of 2 ranks has what is asked for" train_gpt --plan --train good.bin \
    --model $model --ranks 2 --layout d2 --batch 32 --calibrate none --overlap halves
refuses 1 "no layout of 2 ranks fits" train_gpt --train good.bin --ranks 2 --layout auto \
    --calibrate again --model layers=96,heads=96,channels=12288,seq=2048,vocab=50257
if grep -q measur out; then fail "a model that fits nowhere" "it measured first"; fi
refuses 2 "--backend cuda: " "${train[@]}" --backend cuda
refuses 2 "--trace requires --train" train_gpt --init . --prompt a --trace trace.json
refuses 2 "excludes --profile" "${train[@]}" --trace trace.json --profile
refuses_early 1 "good.bin is not a folder" "${train[@]}" --trace good.bin/trace.json
says 1 "trace.json, for ui.perfetto.dev and gpt-timeline" "${train[@]}" --ranks 2 --layout d2 \
    --trace trace.json
works "the E of a trace" test "$(grep -c 'ms      E$' out)" = 1
works "a whole trace" test "$(tail -n 1 trace.json | grep -c '"layout":"d2"')" = 1
refuses 2 "no file: gpt-timeline FILE" timeline --width 70
refuses 1 "nowhere.json" timeline nowhere.json
works "a picture" timeline trace.json --step overlap
# Weights that are not finite are an error, not a result.
tiny=(train_gpt --train good.bin --model layers=1,heads=1,channels=8,seq=16,vocab=257
    --micro 2 --threads 1 --eval-every 0)
works "a model to spoil" "${tiny[@]}" --steps 1 --export-hf spoilt
printf '\x00\x00\xc0\x7f' | dd of=spoilt/model.safetensors bs=1 \
    seek=$(($(stat -c %s spoilt/model.safetensors) - 4)) conv=notrunc status=none
spoilt=(train_gpt --init spoilt --micro 2 --threads 1)
refuses 1 "the validation loss is not a number; first tensor that is not finite: parameter" \
    "${spoilt[@]}" --val good.bin
refuses 1 "a logit of a sample is not a number; first tensor that is not finite: parameter" \
    "${spoilt[@]}" --tokenizer bytes --prompt a
refuses 1 "is not finite: parameter" "${spoilt[@]}" --val good.bin --ranks 2 --layout x2
refuses 2 "nothing to do: --train GLOB trains" train_gpt --val good.bin
refuses 2 "nothing to do with --init ckpt" train_gpt --init ckpt --steps 100 --save tuned
# An empty prompt is allowed: the sample then begins like a document.
works "a sample of no prompt" train_gpt --init ckpt --prompt "" --threads 1 --sample-tokens 3
works "which is all that is printed" test "$(wc -w <out)" = 3
# An export contains the tokenizer's files, too: it can be used without any other folder.
printf 'one two' >words.txt
works "a tokenizer of no pairs" tokenize train --text words.txt --vocab 257 --out signs
printf three >'words[1].txt'
works "a text with brackets in its name" tokenize encode --text 'words[1].txt'
works "it is that text" test "$(wc -l <out)" = 6
works "a vocabulary in new folders" tokenize train --text words.txt --vocab 257 --out new/signs
works "it is there" test -s new/signs/vocab.json
saved=(tokenize convert --tokenizer signs --out)
works "another one in new folders" "${saved[@]}" new/more/signs
works "it is there, too" cmp signs/merges.txt new/more/signs/merges.txt
refuses 1 "--out: words.txt is not a folder" tokenize train --text words.txt --out words.txt
works "an export of a run with a tokenizer" "${tiny[@]}" --steps 1 --tokenizer signs \
    --export-hf given
works "it is a model with its tokenizer" train_gpt --init given --prompt a --threads 1
works "it knows how documents end" grep -q '"eos_token_id": *256\b' given/config.json
works "its tokenizer is the file of the run" cmp signs/vocab.json given/vocab.json
works "a conversion" convert --init given --out given.bf16 --dtype bf16
works "which keeps the tokenizer" cmp signs/merges.txt given.bf16/merges.txt
small=$top/tests/golden/tokenizer/tokenizer.json
saves=(tokenize convert --out saved --tokenizer)
refuses 1 "it holds no merges" "${saves[@]}" signs/gpt2_tokenizer.bin
refuses 1 "can only decode" tokenize encode --text words.txt --tokenizer signs/gpt2_tokenizer.bin
for change in 's/regex":true/regex":false/' 's/space":false/space":true/'; do
    sed "$change" "$small" >more.json
    refuses 1 "have no place for" "${saves[@]}" more.json
done
sed 's/"added_tokens"/"none"/' "$small" >endless.json
# llm.c's tokenizer format needs an end-of-text token; the other files are written all the same.
says 1 'bin is not written' "${saves[@]}" endless.json
printf '{}' | tee saved/vocab.json >saved/tokenizer.json
refuses 1 "vocab.json and saved/merges.txt: merge 1" "${saves[@]}" saved/vocab.json
refuses 1 'saved/tokenizer.json: no "model"' "${saves[@]}" saved
touch few_train_000002.bin
says 1 'train_000002.bin is there from an earlier' tokenize encode --text words.txt --val-tokens 1 \
    --shard-tokens 4 --out few
says 1 'few_train_000000.bin is there from an earlier' tokenize encode --text words.txt --out few
says 1 'few_train.bin is there from an earlier' tokenize encode --text words.txt --out few \
    --shard-tokens 4
refuses 2 "unknown command encoed: did you mean encode?" tokenize encoed
refuses 1 "999 leaves nothing to train on: --text words.txt has 8 tokens" tokenize encode \
    --text words.txt --val-tokens 999 --out few
printf 'a%s\nb%s\n<|endoftext|>\n' 1 1 2 2 3 3 4 4 >docs.txt
works "validation from within a document" tokenize encode --text docs.txt --val-fraction 0.48 \
    --out docs
works "it begins with the next one" test "$(tokenize decode --shard docs_val.bin)" = \
    '<|endoftext|>a4
b4'
works "no validation from within a separator" tokenize encode --text docs.txt --val-fraction 0.1 \
    --out ends
works "it is no text" test \
    "$(tokenize decode --shard ends_train.bin | tail -n 1) $(echo ends_*)" = 'b4 ends_train.bin'
printf '\346\226\207%.0s' {1..5} >wen.txt
works "validation from within a character" tokenize encode --text wen.txt --val-fraction 0.3 --out w
works "it begins with the next one, too" test "$(tokenize decode --shard w_val.bin)" = \
    "<|endoftext|>$(printf '\346\226\207')"
works "an export into its own tokenizer" "${tiny[@]}" --steps 1 --tokenizer given --export-hf given
# The model's own id of the end of documents stays, whatever the tokenizer's is.
cp -r given ended && sed -i 's/\("eos_token_id": *\)256/\15/' ended/*config.json
ends=("${tiny[@]:0:3}" --init ended --tokenizer signs "${tiny[@]:5}" --save kept --steps)
works "a model with its own end of documents" "${ends[@]}" 1
says 1 "step_00000001, whose weights replace --init ended" "${ends[@]}" 2 --resume
works "it has the same end" \
    test "$(grep -c '"eos_token_id": *5\b' kept/step_0000000[12]/config.json | grep -c ':1$')" = 2
works "an export without training" train_gpt --init given --export-hf same --threads 1
works "which says where it is" test "$(tail -n 1 out)" = "exported to same (Hugging Face)"
works "it is the same model" cmp same/model.safetensors given/model.safetensors
rm given/config.json
refuses 1 "; given has no config.json, so the shape is that of --model" train_gpt --init given \
    --val good.bin --model layers=2,heads=1,channels=8,seq=16,vocab=257
# skips loss|norm: prints two bits for each kind of step after the first 128: were the weights left
# unchanged, and was the step recorded as skipped? They must agree.
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
# Some warnings come before the first step: of a run that will take hours, and of a vocabulary that
# the data do not use. says_early WORDS OPTIONS...: waits for the line and ends the run.
says_early() {
    local words=$1
    shift
    : >early # emptied before the child starts: else the previous run's lines would be found
    train_gpt --train good.bin --threads 1 --eval-every 0 "$@" >>early 2>err &
    comes grep -qF -- "$words" early
    kill -KILL $! && wait $! 2>>err # TERM would let it finish a step
    works "\"$words\"" grep -qF -- "$words" early
}
says 3 'step_00000004: checkpoint\|4 steps, 128 tokens\|as it was written' inspect ckpt
works "a folder of a model" inspect spoilt
works "llm.c's file of a model" convert --init mean --out mean.bin
works "a model in bf16" convert --init mean --out half --dtype bf16
says 1 '"torch_dtype": "bfloat16"' cat half/config.json
refuses 1 "File too large" bash -c 'trap "" XFSZ; ulimit -f 1; exec "$@"' - \
    convert --init mean.bin --out back
works "a folder of that file, after a failure" convert --init mean.bin --out back
works "which holds the same" cmp back/model.safetensors mean/model.safetensors
says 1 "^exported to llmc.bin (llm.c)$" train_gpt --init mean --export-llmc llmc.bin --threads 1
works "it is that file" cmp llmc.bin mean.bin
works "the same in bf16" train_gpt --init mean --export-llmc llmc.bin --threads 1 --dtype bf16
says 1 'llm.c version 5 (bf16)' inspect llmc.bin
works "an eps of its own" train_gpt --init mean --val good.bin --threads 1 --model eps=1e-3
refuses 2 "--model says layers=3, but --init mean has layers=2: leave --model out" train_gpt \
    --init mean --val good.bin --threads 1 --model eps=1e-3,layers=3
for folder in folder.bin folder.safetensors; do
    cp -r back $folder
    works "a folder named like a file" convert --init $folder --out $folder.model
done
refuses 1 "back is there already" convert --init mean.bin --out back
works "the newest checkpoint of a run" convert --init ckpt --out newest
works "is that model" cmp newest/model.safetensors ckpt/step_00000004/model.safetensors
works "its logits" logits --init ckpt --tokens 1,2 --out newest.f32
for tool in "convert --out x.bin" "logits --tokens 1 --out x"; do
    # shellcheck disable=SC2086
    refuses 1 "--init nowhere: there is no such file or folder" $tool --init nowhere
done
printf '\346\226\207 a' >wen.txt
works "bytes of a character" tokenize encode --text wen.txt --out wen
says 1 'first .* "\\xe6" "\\x96" "\\x87" " " "a"' inspect --tokenizer bytes wen_train.bin
printf '<|endoftext|>\n%.0s' {1..20} >none.txt
refuses 1 "none.txt has no text, only" tokenize encode --text none.txt --out none
touch wen_val.bin
says 1 'wen_val.bin is there from an earlier run' tokenize encode --text wen.txt --out wen
printf '\100\0\0\0\0\0\0\0{"a\\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x' \
    >red.safetensors
says 1 'a\\x1b\[31m' inspect red.safetensors
mkdir empty
refuses 1 "without a checkpoint, a model, a tokenizer or tokens" inspect empty
refuses 1 "cannot open nowhere: No such file" inspect nowhere
says 1 '^  shape  *layers=2,heads=2,.*,vocab=64,' inspect mean.bin
says 0 ' more$' inspect spoilt/model.safetensors
cp -r ckpt hurt
printf X | dd of=hurt/step_00000004/train_state.json bs=1 seek=100 conv=notrunc status=none
for command in "inspect hurt" "${train[*]} --save hurt --resume"; do
    # shellcheck disable=SC2086
    refuses 1 "train_state.json is damaged: checksum" $command
done
mkdir -p loop/step_00000001 && ln -s checkpoint.json loop/step_00000001/checkpoint.json
refuses 1 "checkpoint.json: Too many levels of symbolic links" inspect loop
for file in spoilt/config.json ckpt/step_00000004/checkpoint.json signs/vocab.json \
    signs/merges.txt; do
    refuses 1 "name its folder" inspect $file
done
refuses 1 "the record of a run: gpt-report shows it" inspect log.jsonl
refuses 1 "a ledger: gpt-ledger shows it" inspect train_gpt/ledger.jsonl
refuses 1 "a trace: gpt-timeline shows it" inspect trace.json
refuses 1 "holds no record of a run" report --out no.html train_gpt/ledger.jsonl
printf 'PK\3\4%026dmodel/data.pkl%020d' 0 0 >model.pt
printf '\200\2\212\12l\374\234F\371 j\250P\31.%049d' 0 >old.pt
for file in model.pt old.pt; do
    refuses 1 "a PyTorch file; save its weights as safetensors instead" inspect $file
done
refuses 2 "the output is a folder" convert --init mean.bin --out mean.safetensors
# Completion in bash runs the programs with --help=words.
completes() { # WORDS COMMAND...: the last argument of the command is completed to WORDS
    local words=$1
    shift
    . "$top/tools/completion.bash"
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _train_gpt "$1"
    works "completion of $*" test "${COMPREPLY[*]}" = "$words"
}
completes "cpu cuda" train_gpt --backend c
completes "--save --save-every --save-best" train_gpt --sav
completes "train encode hellaswag decode info convert" tokenize ""
completes "--text" tokenize encode --te
completes "--out" report log.jsonl --o
says_early "a smaller --batch or a smaller --model takes less time" --model $model \
    --steps 1000000000
says_early "without --model this is GPT-2 124M; --model d6" --steps 1000000000 --micro 1 --seq 16
says_early "the first 2000 tokens have ids up to 60 of a vocabulary of 5000" \
    --steps 100000 --model layers=1,heads=1,channels=8,seq=16,vocab=5000
says_early "--min-lr 0.01 is more than --lr 0.001: the rate rises" \
    --model $model --steps 100000000 --lr 1e-3 --min-lr 1e-2
says_early "--warmup 2000000000 is more than --steps 1000000000" \
    --model $model --steps 1000000000 --warmup 2000000000
says_early "--save-every 10 saves nothing without --save DIR" \
    --model $model --steps 100000000 --save-every 10
says_early "--eval-every 10 evaluates nothing without --val GLOB or --hellaswag FILE" \
    --model $model --steps 100000000 --eval-every 10
works "a vocabulary that is the tokenizer's" train_gpt --train good.bin --micro 1 \
    --tokenizer bytes --memory
works "the weights of 257 tokens, not of 50257" \
    test "$(awk '/parameters/ { print int($2) }' out)" = 328
refuses 1 "nowhere.bin" train_gpt --train nowhere.bin --model $model
refuses 1 "nowhere" "${train[@]}" --init nowhere.bin
refuses 1 "picture.bin" "${train[@]}" --init picture.bin
refuses 1 "nowhere" "${train[@]}" --tokenizer nowhere
refuses 2 "bytes has 257 tokens, the model's vocabulary 64" "${train[@]}" --tokenizer bytes
refuses 2 "--seq 32 is more than the model's 16 positions" "${train[@]}" --seq 32
refuses 1 "--resume" "${train[@]}" --save ckpt
refuses 2 "--save" "${train[@]}" --resume
refuses_early 2 "ckpt/step_00000004 is a checkpoint: name the folder that holds it" "${train[@]}" \
    --save ckpt/step_00000004 --resume
refuses 1 "good.bin is not a folder" "${train[@]}" --json good.bin/log.jsonl
refuses_early 1 "good.bin" "${train[@]}" --save good.bin
refuses_early 1 "good.bin" "${train[@]}" --export-hf good.bin
refuses_early 1 "good.bin is not a folder" "${train[@]}" --export-llmc good.bin/x.bin
refuses_early 1 "cannot hold" train_gpt --train good.bin --micro 2 --threads 1 \
    --model llama,layers=1,heads=2,channels=16,seq=16,vocab=64 --export-llmc x.bin --steps 2
refuses 1 "move it away" "${train[@]}" --lr 1e6 --clip 0 --save bad --save-every 1
ranks() { # RANKS LAYOUT WORDS: a mesh that is refused, in one line that names no rank
    refuses_early 2 "$3" "${train[@]}" --ranks "$1" --layout "$2"
    if grep -q 'rank [0-9]*:' err; then fail "--ranks $1 --layout $2" "a rank is named"; fi
}
ranks -1 auto "--ranks must be between 0 and 4096"
ranks 5000 auto "--ranks must be between 0 and 4096"
refuses_early 2 "an even --micro" "${train[@]:0:5}" --ranks 2 --layout x2 --micro 1 \
    --overlap bulk+halves
ranks 1 x2 "layout: x2 makes 2 ranks, there is 1"
ranks 0 x2.y2 "layout: x2.y2 makes 4 ranks, there is 1"
refuses_early 2 "no multiple of --seq" "${train[@]}" --ranks 3 --layout dp --batch 40
refuses_early 2 "--prompt needs" "${train[@]}" --ranks 3 --prompt word
refuses_early 2 "--ranks takes" "${train[@]}" --ranks four
refuses_early 2 "at most" "${train[@]}" --ranks 2000
escapes() { # COMMAND...: the number of lines with escape sequences when the output is a terminal
    script -qec "$(printf '%q ' env TERM=xterm "$@")" /dev/null </dev/null | grep -c $'\033'
}
if command -v script >/dev/null; then
    works "a bar on a terminal" test "$(escapes "${train[@]}")" -gt 0
    works "none if it is not wanted" test "$(escapes "${train[@]}" --progress none)" = 0
    # env resets SIGINT, which a shell lets its background jobs ignore. With exec the child of
    # `script` is train_gpt itself, not a shell.
    timeout 60 script -qec "exec $(printf '%q ' env --default-signal=INT "${train[@]}" \
        --steps 100000000 --csv pressed.csv)" /dev/null >pressed </dev/null &
    if comes grep -qs '^3,' pressed.csv; then kill -INT "$(pgrep -P "$(pgrep -P $!)")"; fi
    wait $!
    works "Ctrl-C is answered at once" grep -q 'stopping soon; Ctrl-C again ends at once' pressed
fi
# Under a launcher the first process prints the line. Another process prints it only if it is still
# running two seconds later, as here, where no first process ends the job.
refuses 2 "did you mean --steps?" env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "${train[@]}" \
    --stesp 3
refuses 2 "rank 1: unknown option --stesp: did you mean --steps?" env OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_RANK=1 "${train[@]}" --stesp 3
refuses 2 "--exact requires --dtype fp32" "${train[@]}" --exact --dtype bf16
refuses 1 "nowhere.jsonl" report nowhere.jsonl
refuses 1 "holds no record of a run" report picture.bin
refuses 2 "no file" report

says 1 '^all agree$' "${train[@]}" --ranks 4 --layout x2.y2+sp+heads --check-tp 2
whatif=(whatif --cluster cpu:4 --model $model)
refuses 2 "--vary is needed" "${whatif[@]}"
refuses 2 "4" "${whatif[@]}" --vary layers=2..4 --layout x3
refuses 2 "megatron" "${whatif[@]}" --vary layers=2..4 --schemes megatrn
refuses 2 "an even --micro" "${whatif[@]}" --vary layers=2..4 --micro 1 --overlap halves
refuses 2 "Did you mean cpu:4?" whatif --cluster cpuu:4 --vary nodes=1..2
refuses 1 "good.bin is not a folder" "${whatif[@]}" --vary nodes=1..2 --json good.bin/x.json
says 1 ': 1 node$' whatif --cluster h100:1 --model $model --vary ranks_per_node=1..2
says 1 'nodes of 1 rank$' whatif --cluster cpu:1 --model $model --vary nodes=1..2
says 1 ': 1 rank$' whatif --cluster cpu:1 --model $model --vary layers=2..4
works "what if" "${whatif[@]}" --vary network=1..64Gb/s --json x.json
works "a row for each value" \
    test "$(grep -cE ' (┌|│|└|─) ' out) $(grep -o '"value"' x.json | wc -l)" = "7 7"
works "the report" report --out page.html log.jsonl
works "the page" grep -q '</html>' page.html
mkfifo pipe && { timeout 90 cat pipe >piped.html 2>/dev/null & }
works "the page into a pipe" report --out pipe log.jsonl
works "the pipe is still one" test -p pipe
says 1 '^1 node, 3 ranks (threads)' train_gpt --plan --calibrate none --model $model --ranks 3
memory=(train_gpt --memory --model $model --sample-every 1)
says 2 '^  \(optimizer\|sampling\) *[0-9.]*[1-9]' "${memory[@]}"
says 0 'outer loop' "${memory[@]}"
says 2 '^  \(gradients\|optimizer\) *0\.0 *0\.0 %' train_gpt --memory --init mean
train_gpt --memory --model $model --sync-every 4 --outer-momentum 0.9 >memory_outer
works "anchor and velocity, as m and v" test "$(awk '/outer loop/ { print $3, $4 }' memory_outer)" \
    = "$(awk '/optimizer/ { print $2, $3 }' memory_outer)"
"${train[@]}" --ranks 2 --layout d2 --json - >out 2>err
record=$(head -n 1 out)
works "records on the standard output" \
    test "$(grep -vc '^{.*}$' out) $(grep -c '"loss"' out) $(grep -c '^step' err)" = "0 4 4"
works "the first of which says what is trained" grep -qE '"threads":1,"ranks":2,"layout":"d2",'\
'"overlap":"bulk",.*"parameters":7872,"tokens_per_step":64,"steps":4,"flops_per_token":48768' \
    <<<"$record"
"${train[@]}" --csv - >out 2>err
works "columns on the standard output" \
    test "$(grep -c '^[0-9s][^ ]*$' out) $(wc -l <out) $(grep -c '^step' err)" = "5 5 4"
train_gpt --plan --cluster cpu:4 --model $model --json - >out 2>err
works "a plan on the standard output" \
    test "$(wc -l <out) $(grep -c '"layout"' out) $(grep -c '^chosen' err)" = "1 1 1"
"${whatif[@]}" --vary nodes=1..2 --json - >out 2>err
works "what if on the standard output" \
    test "$(wc -l <out) $(grep -c '"points"' out) $(grep -cE ' (┌|│|└|─) ' err)" = "1 1 2"
for i in 1 2 2 3 3 3; do
    echo '{"ctx":"a","label":"'$i'","endings":["c","d","e","f"]}'
done >swag.jsonl
for tool in "report log.jsonl" "corpus --bytes 9" "logits --init ckpt --tokens 1" \
    "tokenize hellaswag --text swag.jsonl"; do
    # shellcheck disable=SC2086
    $tool --out - >piped 2>err
    # shellcheck disable=SC2086
    works "$tool into a new folder" $tool --out new/"$tool"/file
    sed -i 's/20[0-9-]*T[0-9:]*Z/now/' piped new/"$tool"/file # a second may have passed
    works "$tool on the standard output" cmp piped new/"$tool"/file
done
# What gpt-inspect says of files whose contents are known, but for the lines of shapes.
header() { for i in "$@"; do word "$i"; done && head -c 1024 /dev/zero; }
header 20240327 2 4 64 >debug.bin
header 20240527 1 8 3 0 0 0 0 0 0 77 >state.bin
tokenize hellaswag --text swag.jsonl --out swag.bin >out
works "files of all kinds" inspect good.bin mean.bin signs swag.bin debug.bin state.bin \
    ckpt/step_00000004/model.safetensors
works "are described" test "$(grep -v '^  shape\|^  F32' out)" = 'good.bin: tokens, llm.c uint16
  tokens    2,000
  ids       0 .. 60, 31 of them in use; needs a vocabulary of 61
  frequent  5 3.3 %, 12 3.3 %, 13 3.3 %, 14 3.3 %, 15 3.3 %, 19 3.3 %, 27 3.3 %, 34 3.3 %, 41 '\
'3.3 %, 42 3.3 %
  first     0 1 4 9 16 25 36 49 3 20
mean.bin: GPT-2 model, llm.c version 3 (fp32)
  parameters 7,872, vocabulary padded to 128
signs: tokenizer, GPT-2 vocab.json and merges.txt
  tokens    257, end of text is 256
  encodes   yes
swag.bin: llm.c evaluation file (HellaSwag)
  examples  6 of 4 completions; right is 0, 1, 2, 3 times the first to fourth
  longest   3 tokens: needs --seq of at least 2 for all
  ids       up to 102
debug.bin: llm.c debug state, version 2, batch of 4 x 64 (not read by train_gpt)
state.bin: llm.c optimizer state, version 1, rank 3 of 8, step 77 (not read by train_gpt)
ckpt/step_00000004/model.safetensors: safetensors
  tensors   28 of 7,872 elements, 33,728 bytes in all
  ... and 8 more'
head -c 1000 state.bin >cut.bin
refuses 1 "cut.bin: 1000 bytes, fewer than its header of 1024" inspect cut.bin
mkdir mixed && cp good.bin words.txt cut.bin mixed && ln -s ../good.bin mixed/.hidden.bin
inspect mixed >out 2>err
works "files of a folder, and the number of the bad ones" \
    test "$? $(grep -c : out) $(tail -n 1 err)" = \
    "1 1 inspect: mixed: 1 of its files cannot be read"
says 1 ': 13 checkpoints; the newest:$' inspect loss
printf 'aaaabb"\n' >a.txt
for format in llmc16 llmc32 nanogpt; do
    works "shards of $format" tokenize encode --text a.txt --val-fraction 0 --format $format \
        --out $format
done
says 3 'llm.c uint16$\|llm.c uint32$\|nanoGPT raw uint16$' inspect {llmc16,llmc32,nanogpt}_train.bin
says 1 'frequent  "a" 44.4 %, "b" 22.2 %, "\\n" 11.1 %, "\\"" 11.1 %, "<|endoftext|>" 11.1 %$' \
    inspect --tokenizer bytes nanogpt_train.bin
says 1 '^aaaab$' tokenize decode --shard nanogpt_train.bin --from 1 --count 5
works "the rest" test "$(tokenize decode --shard nanogpt_train.bin --from 5 --count 99)" = 'bb"'
refuses 1 "--from 10 is beyond the 9 tokens" tokenize decode --shard nanogpt_train.bin --from 10
says 4 '^tokens  *257$\|^merges  *0$\|^encodes  *yes$\|1.05 on average, at most 13$' \
    tokenize info --tokenizer signs
printf abababcdcd >pairs.txt
says 1 "pairs for 258 tokens only: no other pair of neighbours occurs 3 times" tokenize train \
    --text pairs.txt --vocab 260 --min-count 3 --out pairs
printf 'x%.0s' {1..100} >x.txt
says 2 '^x_train.bin: 91 tokens$\|^x_val.bin: 11 tokens$' tokenize encode --text x.txt --out x
works "a text of as many bytes as asked" test "$(corpus --bytes 3000 | wc -c)" = 3000
for id in -1 64; do
    refuses 2 "--tokens: $id is no id of a vocabulary of 64" logits --init ckpt --tokens 1,$id \
        --out x
done
refuses 2 '--tokens: a number is needed at ""' logits --init ckpt --tokens 1, --out x
sixteen=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,63
refuses 2 "the model takes at most 16" logits --init ckpt --tokens $sixteen,0 --out x
works "as many tokens as a model takes" logits --init ckpt --tokens $sixteen --out x
works "logits of all tokens after each" test "$(stat -c %s x)" = $((16 * 64 * 4))
"${train[@]}" --ranks 2 --layout d2 --trace - >out 2>err
works "a trace on the standard output" test "$(tail -n 1 out | grep -c '"layout":"d2"')" = 1
refuses 1 "this format is not written from front to back" "${train[@]}" --export-llmc -
refuses 2 "--ledger: - is the standard output" "${train[@]}" --ledger -
for tool in "convert --init ckpt --out" "tokenize convert --tokenizer signs --out" \
    "tokenize train --text words.txt --vocab 257 --out" "${train[*]} --export-hf" \
    "${train[*]} --tensorboard" "${train[*]} --save"; do
    # shellcheck disable=SC2086
    refuses 1 "- is the standard output: name a" $tool -
done
refuses 2 "- is the standard output: name a PREFIX" tokenize encode --text words.txt --out -
refuses 1 "nofile/ is a directory: name a file" corpus --bytes 9 --out nofile/
works "it is not made" test ! -e nofile
refuses 1 "cannot read .: Is a directory" ledger --file .
works "no file of that name" test ! -e ./- -a ! -e ./-_train.bin
works "outputs in new folders" "${train[@]}" --json far/away/a --csv far/a --tensorboard far/c/d \
    --trace far/e/f --export-llmc far/g/h
works "which are there" test -s far/away/a -a -s far/a -a -d far/c/d -a -s far/e/f -a -s far/g/h
refuses 2 "goes to that file" "${train[@]}" --json further/away/a --csv ./further/away/a
refuses 2 "goes to that file" "${train[@]}" --json further//away/a --csv further/./away/a
printf '{"time":"now","ranks":2}\nno line\n{"time":"then"}\n\n[1]\n' >torn.jsonl
refuses 1 "torn.jsonl:2: " ledger --file torn.jsonl
works "its good lines" test "$(grep -c '^now\|^then' out)" = 2
refuses 1 "cannot open nowhere.jsonl" ledger --file nowhere.jsonl
refuses 1 "cannot open nowhere.jsonl" ledger --file nowhere.jsonl --json
refuses 1 "picture.bin:1: " ledger --file picture.bin
plan=(train_gpt --plan --cluster cpu:4 --model $model)
refuses 2 "--batch 40 tokens is no multiple of --seq 16" "${plan[@]}" --batch 40
refuses 2 "an even --micro" "${plan[@]}" --micro 1 --overlap halves
refuses 2 "x3 makes 3 ranks, there are 4" "${plan[@]}" --layout x3
says 1 "its only micro-batch is of 1" "${train[@]}" --ranks 2 --layout d2 --batch 32
says 1 "its only micro-batch is of 1" "${plan[@]}" --layout d4 --micro 2 --batch 64
says 0 "its only micro-batch" "${train[@]}" --ranks 2 --layout d2 --batch 64
says 1 "1 of the 2 sequences of the last micro-batch are padding" "${train[@]}" --batch 48
says 1 "the default --micro 4: .* 3 of the 4 sequences of the last" train_gpt --train good.bin \
    --model $model --batch 80 --steps 1 --eval-every 0
says 1 "4 of the 8 sequences of the last" "${plan[@]}" --layout d4 --micro 2 --batch 192
says 0 "warning" "${plan[@]}" --batch 80
for micro in 1 2 3; do # the same steps, with padding or without
    says 4 "step    ./4" "${train[@]}" --batch 48 --micro $micro --exact --csv micro$micro.csv
    cut -d, -f3,5 micro$micro.csv >losses$micro
    works "losses of --micro $micro" cmp losses1 losses$micro
done
says 1 "--overlap ring does nothing on d2" "${train[@]}" --ranks 2 --layout d2 --overlap bulk+ring
says 1 "--overlap ring does nothing on d4" "${plan[@]}" --layout d4 --overlap bulk+ring
says 1 "--overlap fused does nothing: ranks sum the integers of --exact" \
    "${train[@]}" --ranks 2 --layout x2+sp --exact --overlap fused
says 1 "--overlap chunk does nothing on d2" "${train[@]}" --ranks 2 --layout d2 --overlap chunk=2
says 0 "does nothing" "${train[@]}" --ranks 2 --layout x2+sp --overlap bulk+ring
says 1 "overlap bulk (auto of a given layout; --plan prices others)" \
    "${train[@]}" --ranks 2 --layout x2
says 1 "this plan is --micro" "${plan[@]}" --layout x4+sp --batch 1024
given=(--layout x4+sp --micro 4 --recompute none --overlap bulk)
says 0 "this plan is" "${plan[@]}" "${given[@]}" --batch 256
says 1 "this plan is --batch 256 --micro 4" "${plan[@]}" "${given[@]}" # the run's default is 64
says 1 "Kernels of --exact are priced as" "${plan[@]}" --exact
says 1 "^chosen .* none  *2 full " "${plan[@]}" --micro 2 --recompute full --overlap none
tries=("${train[@]}" --ranks 2 --layout auto --calibrate none --ledger none --steps 200 --refine 3)
says 0 "refine:" "${tries[@]}" --sync-every 2
# With --micro 2 a step of 4 sequences is one micro-batch on d2 and two on x2: the layouts that are
# tried add their sums in different orders, but with --exact they train the same weights.
works "exact on one rank" "${train[@]}" --steps 200 --batch 64 --exact --json one.jsonl
works "exact on layouts that are tried" "${tries[@]}" --batch 64 --exact --json tried.jsonl
works "which name the time of a change with digits" test \
    "$(grep -c '^step .*(moved in [1-9][0-9.]* [mu]*s)$' out)" -ge 1 -a \
    "$(grep -c '^refine: .* about [1-9][0-9.]* [mu]*s$' out)" = 1
works "which train the same" test "$(losses tried.jsonl)" = "$(losses one.jsonl)"
says 1 "hides nothing: both steps are the same" "${train[@]}" --ranks 2 \
    --layout d2 --overlap none --trace none.json
works "without E" test "$(grep -c ' E is \|ms      E$' out)" = 0
works "the records" test "$(grep -c '"loss"' log.jsonl) $(wc -l <log.csv)" = "4 5"

full_output=(bash -c '"$@" >/dev/full' -)
says 1 'warning: cannot write to the standard output: No space left' "${full_output[@]}" \
    "${train[@]}"
refuses 1 "cannot write the standard output: No space left" "${full_output[@]}" train_gpt \
    --listing --model $model --ranks 2 --layout x2
refuses 1 "cannot write the standard output: No space left" "${full_output[@]}" train_gpt --plan \
    --model d12 --cluster h100:1
refuses 1 "cannot write the ids" "${full_output[@]}" tokenize encode --text opt.conf
refuses 1 "cannot write the standard output: File too large" bash -c \
    '(ulimit -f 0; exec "$@" >limited) 2>&1 | cat >&2; exit ${PIPESTATUS[0]}' - train_gpt --help

# If the caller has closed a standard stream, the next file that is opened would get its number, and
# printed text would land in that file.
works "no stream is open" bash -c '"$@" <&- >&- 2>&-' - "${train[@]}" --json closed.jsonl \
    --save closed
works "only records in a file" test "$(grep -vc '^{' closed.jsonl)" = 0
no_output=(bash -c '"$@" >&-' -)
refuses 1 "standard output is not open" "${no_output[@]}" "${train[@]}" --json -
refuses 1 "cannot write: Bad file descriptor" "${no_output[@]}" corpus --bytes 1000

# SIGTERM ends a run within a step that would take minutes. Until then no other run can save in its
# folder.
: >out # emptied before the child starts: else the previous output would be read
"${train[@]:0:3}" --model layers=4,heads=4,channels=128,seq=256,vocab=64 --micro 1 --threads 1 \
    --batch 1048576 --save slow >>out 2>slow.err &
pid=$!
comes grep -q "^note *about .* for 1000 steps" out # the last line before the first step
sleep 0.3
refuses 1 "slow/.lock is held by process $pid on" "${train[@]}" --save slow
kill -TERM $pid
ends_within 20 $pid || kill -KILL $pid
wait $pid
works "SIGTERM while busy" \
    test "$? $(grep -c 'after step 0; nothing was saved$' slow.err) $(ls slow)" = "143 1 "

refuses 2 "--layouts: layout" bench_layouts --ranks 4 --layouts d2.x2,d3
refuses 2 "did you mean bulk" bench_layouts --ranks 4 --layouts d4@bulb
refuses 2 "recompute is none, selective or full" bench_layouts --ranks 4 --layouts d4@bulk@half
refuses 2 "a number from 1, not 0" bench_layouts --ranks 4 --layouts d4@none@none@0
refuses 2 "halves need an even number" bench_layouts --ranks 4 --layouts x4@halves@none@1
refuses 2 "--units 2,x" bench_layouts --ranks 4 --units 2,x

# `make install` installs train_gpt and the tools, under names that no other program has, but no
# benchmarks and no programs of the tests.
if [ "$programs" = "$top/build" ]; then
    install=(env -u MAKEFLAGS -u MAKELEVEL make -s -C "$top" DESTDIR="$dir/new root" PREFIX=/usr)
    works "an installation" "${install[@]}" install
    pages='new root/usr/share/man/man1'
    works "its man pages" \
        test "$(ls "$pages" | wc -l) $(grep -l '^.SH NAME' "$pages"/* | wc -l)" = "9 9"
    works "its programs" test "$(cd 'new root/usr/bin' && echo *)" = \
        "$(echo gpt-{convert,corpus,inspect,ledger,report,timeline,tokenize,whatif} train_gpt)"
    works "they are those of build/bin" diff -r 'new root/usr/bin' "$programs/bin"
    works "what was installed goes away" "${install[@]}" uninstall
    works "all of it" test -z "$(find 'new root' ! -type d)"
    # ar and the C++ compiler that belong to a compiler with a prefix, a path and a version
    names=("${install[@]}" --eval 'names: ; @echo $(CROSS)ar $(CXX)' names)
    says 1 '^arm-gnu-ar ccache arm-gnu-g++-12$' "${names[@]}" CC="ccache arm-gnu-gcc-12"
    says 1 '^ar /opt/my-gcc-13/bin/g++$' "${names[@]}" CC=/opt/my-gcc-13/bin/gcc
    says 1 '^ar /opt/x-clang/bin/clang++-15$' "${names[@]}" CC=/opt/x-clang/bin/clang-15
    mkdir broken && ln -s "$(type -P false)" broken/x
    LC_ALL=C "${install[@]}" "B=$dir/broken" "$dir/broken/man/gpt-x.1" 2>made
    works "a program that fails" grep -q "gpt-x.1\] Error 1" made
    works "no page of it" test ! -e broken/man/gpt-x.1
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
