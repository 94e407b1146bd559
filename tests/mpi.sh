#!/bin/bash
# mpi.sh [PART...]: tests of ranks that are processes. They compute the same sums as threads, bit
# for bit. Whenever a rank or a link fails, the job ends in time, and surviving ranks print what
# they waited for. Run from the top of the tree after `make all build/run_tests`; PROGRAMS names
# another folder of programs. Parts (default: all):
#
#   sums, faults, training, layouts, starts, saves    mpirun on this machine
#   launchers                                         variables of launchers, without a launcher
#   cluster, hosts, links                             tests/netlab: a host is a network namespace,
#                                                     links are cut. Needs root and iproute2
#
# Most of the time passes in waits: for mpirun, and for time limits. So parts run in parallel, each
# in its own folder. Only "links" runs alone, because it measures times; it first waits for the end
# of the process QUIET_AFTER, if set. Tests of a wait have a short LIMIT; all other tests have
# limits that are never reached, even on a busy machine.
set -u
. tests/common.sh
programs=${PROGRAMS:-$PWD/build}
lab=$PWD/tests/netlab/lab.sh
job=$programs/ranks_job
dir=$(mktemp -d)
cd "$dir" || exit 1
passed=0 failed=0 skipped=0
export LIMIT=100 # seconds that a wait may last
export START=100 # seconds that the start may take
brief=3         # LIMIT of tests in which ranks wait until the limit
in_a_save=30    # the limit that takes its place while a checkpoint is written
slack=15        # seconds from the limit to the end of the job: mpirun gives its ranks one second
export LAB=mpi$$ # clusters of this run: LAB-cluster, LAB-hosts, LAB-links
# A child of this shell that is killed before its exec runs the trap, too. It must not remove the
# folder.
trap 'if [ $BASHPID = $$ ]; then labs_down; rm -rf "$dir"; fi' EXIT
labs_down() {
    local part
    for part in cluster hosts links; do
        [ ! -e "$dir/$part/lab" ] || LAB=$LAB-$part "$lab" down
    done
}

fail() {
    echo "FAIL $1: $2"
    sed 's/^/     /' err | head -8
    failed=$((failed + 1))
}
skip() {
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}
# Removes what mpirun itself has printed from err: Open MPI 5 has no option that prevents it.
only_ranks() { sed -Ei 's/\x00//g; /^-{60}/,/^-{60}/d; /^\[|more process.* sent help|^ *$/d' err; }
lines() { grep -c -- "$1" err; }

mpirun=(mpirun --allow-run-as-root --oversubscribe --bind-to none --timeout 200
    --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include lo)
# mpi RANKS COMMAND...: runs ranks as processes on this machine, which may have fewer cores.
mpi() {
    local n=$1
    shift
    "${mpirun[@]}" --mca mpi_yield_when_idle 1 -n "$n" "$@" </dev/null
}
# mpi_where RANKS TEST CODE COMMAND...: as mpi; ranks that pass TEST, such as "> 0", first run CODE.
mpi_where() {
    local n=$1 each="if ((OMPI_COMM_WORLD_RANK $2)); then $3; fi; exec \"\$@\""
    shift 3
    mpi "$n" bash -c "$each" each "$@"
}
# cluster COMMAND...: runs two ranks on each of two emulated hosts. measured COMMAND...: runs one
# rank on each, with priority over all other processes of this machine.
cluster() { LIMIT_S=200 "$lab" mpirun 2 2 "$@"; }
measured() { FIRST=1 LIMIT_S=200 "$lab" mpirun 2 1 "$@"; }

has_lines() { [ "$(grep -c "$2" "$3")" -ge "$1" ]; }

# launcher JOB: the pid of the mpirun that this child of the shell runs; Open MPI 5's is prterun.
launcher() { pgrep -P "$1" 'mpirun|prterun'; }

# started JOB: waits for the line "rank R pid N" of each of four ranks. Sets $pids to all pids and
# $victim to that of rank 2. Fails if the job ends before.
started() {
    while kill -0 "$1" 2>/dev/null; do
        pids=$(awk '$1 == "rank" && $3 == "pid" { print $4 }' out)
        victim=$(awk '$1 == "rank" && $2 == 2 && $3 == "pid" { print $4 }' out)
        [ "$(wc -w <<<"$pids")" -lt 4 ] || [ -z "$victim" ] || return 0
        sleep 0.1
    done
    return 1
}

# tries N NAME TEST...: runs a test, which sets $why to the reason of a failure, up to N times until
# it passes. Some tests depend on time: mpirun gives ranks one second to print (Open MPI 5 a quarter
# of one), a virtual machine may stop for longer, and measured times grow while other programs use
# the processors.
tries() {
    local left=$1 name=$2
    shift 2
    while why= && "$@"; [ -n "$why" ] && [ $((left -= 1)) -gt 0 ]; do
        echo "again $name: $why"
        sed 's/^/     /' err | head -8
    done
    if [ -z "$why" ]; then passed=$((passed + 1)); else fail "$name" "$why"; fi
}
# check NAME TEST...: runs a test once.
check() { tries 1 "$@"; }
runs() { "$@" >out 2>err || why="status $?"; }

# fault DO WHO STATUS LINES COMMAND...: runs the command, whose ranks print "rank R pid N", then
# evaluates DO, in which $victim is the pid of rank 2. The job must end in time with STATUS, print
# at least LINES lines of ranks that waited, of which one names WHO, and leave no process.
fault() {
    local action=$1 who=$2 want=$3 least=$4 job_pid pid pids victim start status n
    shift 4
    : >out # emptied before the child starts: else the pids of the previous job would be read
    LIMIT=$brief "$@" >>out 2>err &
    job_pid=$!
    if ! started $job_pid; then
        wait $job_pid
        why="status $?: the ranks did not start"
        return
    fi
    sleep 0.3
    start=$SECONDS
    eval "$action"
    wait $job_pid
    status=$?
    n=$(lines 'waited .* s for all_reduce "gradient" of .* bytes along all in step .*; not there: ')
    [[ $status =~ ^($want)$ ]] || why="status $status, not $want"
    [ $((SECONDS - start)) -le $((brief + slack)) ] || why="it took $((SECONDS - start)) s"
    [ "$n" -ge "$least" ] || why="$n lines of survivors, not $least"
    [ "$least" = 0 ] || grep -q "not there: .*$who" err || why="no line names $who"
    for pid in $pids; do ends_within 10 "$pid" || why="a rank is left"; done
}

# ends NAME STATUS WORDS COMMAND...: the command must end with STATUS and print, besides warnings,
# one line on stderr, which contains WORDS.
ends() { check "$1" ends_so "${@:2}"; }
ends_so() {
    local want=$1 words=$2 status
    shift 2
    "$@" >out 2>err
    status=$?
    only_ranks
    [ $status = "$want" ] || why="status $status, not $want"
    [ "$(grep -vc ": warning: " err)" = 1 ] || why="$(wc -l <err) lines on stderr"
    grep -qF -- "$words" err || why="no line has \"$words\""
}

# ---- this machine

# same_sums RANKS: processes compute the sums of threads.
same_sums() {
    # once for each number of ranks: threads ignore MESH_NODE_RANKS
    [ -s "threads$1" ] || { "$job" sums "$1" >sums 2>err && mv sums "threads$1"; } ||
        why="threads: status $?"
    mpi "$1" "$job" sums >processes 2>err || why="processes: status $?: $(tail -1 err)"
    { [ -s "threads$1" ] && cmp -s "threads$1" processes; } ||
        why="${why:-sums of $1 processes are not those of $1 threads}"
}

train=("$programs/train_gpt" --train shard.bin
    --model layers=2,heads=4,channels=32,seq=16,vocab=64 --micro 2 --batch 128
    --eval-every 0 --threads 1 --timeout $LIMIT)
# The results of each step, without its times.
losses() { sed -n 's/^\({"step":[0-9]*,.*"lr":[^,]*\),.*/\1/p' "$1"; }

# same_losses LAYOUT: processes have the losses of threads. They warn that nothing can be fused.
same_losses() {
    "${train[@]}" --steps 8 --ranks 4 --layout "$1" --json threads.json >out 2>err ||
        why="threads: status $?"
    mpi 4 "${train[@]}" --steps 8 --layout "$1" --json processes.json --overlap bulk+fused \
        >out 2>err || why="processes: status $?"
    grep -q 'fused does nothing: its ranks are processes' err || why="no warning of fused"
    [ "$(losses threads.json | wc -l)" = 8 ] ||
        why="$(losses threads.json | wc -l) steps are recorded, not 8"
    [ "$(losses threads.json)" = "$(losses processes.json)" ] ||
        why="losses differ from those of threads"
}

# Every process sends its spans to the first one, which writes them all.
traced() {
    runs mpi 4 "${train[@]}" --steps 5 --layout d2.x2 --trace trace.json
    grep -q 'trace: step 3 .* clocks agree within' out || why="no line of the trace"
    "$programs/timeline" trace.json --width 80 >picture 2>err || why="timeline: status $?"
    [ "$(grep -c '^rank [0-3] ' picture)" = 8 ] ||
        why="$(grep -c '^rank' picture) rows, not those of 4 ranks in 2 steps"
}

# same_bits RANKS LAYOUT [NEAR]: with --exact processes on any mesh, NEAR of them on a node, have
# the losses of one rank, bit for bit.
same_bits() {
    MESH_NODE_RANKS=${3:-0} runs mpi "$1" "${train[@]}" --steps 5 --exact --layout "$2" \
        --json processes.json
    [ "$(losses one.json | wc -l)" = 5 ] || why="one rank: $(losses one.json | wc -l) steps"
    [ "$(losses one.json)" = "$(losses processes.json)" ] ||
        why="losses differ from those of one rank"
}

# A job that tries all layouts has the same layouts, bytes and memory with processes as with
# threads; and a job compares schedules.
bench=("$programs/bench_layouts" --model layers=1,heads=2,channels=12,seq=4,vocab=31
    --micro 1 --steps 1 --rounds 2 --threads 1 --timeout $LIMIT)
every_layout() {
    local what='s/"ms".*"received"/"received"/; s/,"resident".*//; /^{"layout"/p'
    "${bench[@]}" --ranks 4 2>err | sed -n "$what" >threads
    mpi 4 "${bench[@]}" 2>err | sed -n "$what" >processes
    [ "$(wc -l <threads)" -ge 40 ] || why="$(wc -l <threads) layouts, not all"
    cmp -s threads processes || why="processes differ from threads: $(diff threads processes |
        head -2)"
}
every_schedule() {
    runs mpi 4 "${bench[@]}" --serial --layouts x4,x4@bulk,d4@bulk@full
    [ "$(grep -c '"overlap":"bulk",.*"serial_tensor_ms":' out)" = 2 ] || why="not two with bulk"
    [ "$(sed -n 's/.*"recompute":"\([a-z]*\)".*/\1/p' out | tr '\n' ' ')" = "none none full " ] ||
        why="recompute is not what was asked for"
}

# Threads can continue the newest checkpoint.
continues() {
    local job_pid
    # emptied before the child starts: else the steps of the previous run would be counted
    : >out
    "${train[@]}" --steps 1000000 --save save --resume --ranks 4 --layout x4 >>out 2>>err &
    job_pid=$!
    comes has_lines 3 '^step' out || why="the newest checkpoint cannot be continued"
    kill $job_pid
    wait $job_pid
}

# Have some checkpoints been saved? The first ones may have been removed again.
saved() { [[ $(ls save 2>/dev/null | tail -1) > step_00000039 ]]; }

# interrupted SIGNAL: a rank of a training run gets the signal after the first checkpoints. The
# newest checkpoint is complete: threads continue it.
interrupted() {
    local signal=$1 job_pid victim start
    rm -rf save
    mpi 4 "${train[@]}" --timeout $brief --steps 1000000 --save save --save-every 20 \
        --layout d2.x2 >out 2>err &
    job_pid=$!
    comes saved || why="there is no checkpoint"
    victim=$(pgrep -P "$(launcher $job_pid)" | tail -1)
    start=$SECONDS
    if [ -n "$victim" ]; then kill -"$signal" "$victim"; fi
    wait $job_pid && why="status 0"
    [ -n "$victim" ] || why="the ranks did not start"
    [ $((SECONDS - start)) -le $((in_a_save + slack)) ] || why="it took $((SECONDS - start)) s"
    [ "$(lines 'train_gpt: rank .* waited .* s for ')" -ge 1 ] ||
        why="no survivor said what it waited for"
    continues
}

# A rank of a training run is stopped in a long evaluation. The ranks that wait for it name it: in a
# collective along z, or along all if the rank had finished the one along z.
stopped_is_named() {
    local job_pid pid victim=
    : >out
    { word 20240520 && word 1 && word 2000000 && head -c 4001012 /dev/zero; } >long.bin
    mpi 4 "${train[@]}" --timeout $brief --steps 1000000 --layout z4 \
        --val long.bin --eval-every 3 --eval-batches 0 >>out 2>err &
    job_pid=$!
    comes has_lines 3 '^step' out
    for pid in $(pgrep -P "$(launcher $job_pid)"); do
        ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=2 || victim=$pid
    done
    if [ -n "$victim" ]; then kill -STOP "$victim"; else kill $job_pid; fi
    wait $job_pid
    [ -n "$victim" ] || why="the ranks did not start"
    grep -Eq 'waited .* along (z|all)\b.* in the evaluation after step 3; not there: .*rank 2\b' \
        err || why="no line of those that wait names the evaluation and rank 2"
}

# The disk is full for one process of four: one line names the rank, the checkpoint before stays
# complete, and no other file is left.
failed_save() {
    rm -rf save
    mpi 4 "${train[@]}" --steps 4 --save save --layout x4 >out 2>err ||
        why="status $? of the run before"
    # MPI's own shared memory is a file, too: the limit must not kill it
    mpi_where 4 "== 2" 'trap "" XFSZ; ulimit -f 1' "${train[@]}" --steps 8 --save save --resume \
        --layout x4 >out 2>err && why="status 0"
    only_ranks
    [ "$(wc -l <err)" = 1 ] || why="$(wc -l <err) lines on stderr"
    grep -q 'rank 2.*cannot write save/.*File too large' err ||
        why="the line does not name rank 2 and the file: $(cat err)"
    [ "$(ls -A save | tr '\n' ' ')" = ".lock step_00000004 " ] ||
        why="left in the folder: $(ls -A save | tr '\n' ' ')"
    mpi 3 "${train[@]}" --steps 8 --save save --resume --layout x3 >out 2>>err ||
        why="status $? of the run after"
    [ -d save/step_00000008 ] || why="the checkpoint before cannot be continued"
}

# signalled SIGNAL: a signal to the launcher reaches all ranks, which save and end. --init with a
# folder of checkpoints takes the newest. After SIGTERM mpirun reads no output: if rank 0 printed
# more than the 4 KiB of a terminal's buffer, it would wait for ever.
signalled() {
    local signal=$1 job_pid
    rm -rf save
    : >out
    # By default Open MPI 4 kills ranks one second after SIGTERM, on a busy machine too soon for a
    # save. It waits twice the given time.
    OMPI_MCA_odls_base_sigkill_timeout=5 mpi 4 "${train[@]}" --steps 1000000 --log-every 20 \
        --save save --layout x2.y2 >>out 2>err &
    job_pid=$!
    comes has_lines 5 '^step' out
    kill -"$signal" "$(launcher $job_pid)"
    wait $job_pid && why="status 0"
    ls save/step_* >/dev/null 2>&1 || { why="nothing was saved"; return; }
    mpi 4 "$programs/train_gpt" --init save --val shard.bin --layout d4 --micro 2 --threads 1 \
        >out 2>>err || why="status $? of --init"
    grep -q 'val loss' out || why="${why:-no validation of the newest checkpoint}"
}

# A signal reaches one rank only, or that rank first: all ranks save, and end as that signal asks.
one_signalled() {
    local job_pid status
    rm -rf save
    : >out
    mpi 2 "${train[@]}" --steps 1000000 --save save --layout x2 >>out 2>err &
    job_pid=$!
    comes has_lines 5 '^step' out
    kill -USR1 "$(pgrep -P "$(launcher $job_pid)" | tail -1)"
    wait $job_pid
    status=$?
    [ $status = 138 ] || why="status $status"
    grep -q 'stopped by signal 10 after step .*--resume continues' err ||
        why="the line does not name the signal"
}

# mpirun gives rank 0 a terminal even if its own output goes to a file: then there must be no bar
# and no escape sequences.
no_bar() {
    TERM=xterm runs mpi 2 "${train[@]}" --steps 4 --layout d2
    if grep -q $'\033' out; then why="escapes in a file"; fi
    TERM=xterm runs mpi 2 "${train[@]}" --steps 4 --layout d2 --progress bar
    grep -q $'\033' out || why="no bar that was asked for"
}

# Ranks with one and with two threads cannot measure collectives together: the plan is made without
# measurements.
unlike_teams() {
    local unlike=("$programs/train_gpt" --train shard.bin
        --model layers=2,heads=4,channels=32,seq=16,vocab=64 --batch 128
        --eval-every 0 --steps 2)
    mpi 2 sh -c 'exec taskset -c "0-$OMPI_COMM_WORLD_RANK" "$@"' sh "${unlike[@]}" >out 2>err ||
        why="status $?"
    [ "$(nproc)" = 1 ] || grep -q 'different numbers of threads' err ||
        why="no line says that nothing is measured"
    [ "$(grep -c 'step .*loss' out)" -ge 2 ] || why="$(grep -c 'step .*loss' out) steps"
}

# One node has one rank, another three: all ranks agree which groups lie inside a node.
unlike_nodes() {
    local each='h=0; [ "$OMPI_COMM_WORLD_RANK" = 0 ] || h=1
        exec unshare --uts sh -c "hostname n$h; exec \"\$@\"" sh "$@"'
    mpi 4 sh -c "$each" sh "$programs/train_gpt" --plan --layout d2.x2 --micro 16 --batch 4096 \
        --model layers=2,heads=4,channels=32,seq=64,vocab=64 --threads 1 --timeout $LIMIT \
        >out 2>err || why="status $?"
    grep -q '^chosen  *d2.x2 ' out || why="${why:-no plan}"
}

# Processors of two kinds: all ranks take the best kernels that both have, so replicas stay equal.
unlike_processors() {
    local who
    for who in 0 1; do
        runs mpi_where 2 "== $who" "export TRAIN_GPT_KERNELS=portable" "${train[@]}" --layout d2 \
            --steps 8 --audit-every 8
        grep -q '^machine .* portable kernels' out || why="portable on rank $who: other kernels"
    done
}

# Makes a different executable of the same commit.
make_other_build() { { cat "${train[0]}" && echo; } >other_build && chmod +x other_build; }

# measures COMMAND...: the job must end with status 0. Did it measure costs?
measures() { runs "$@" && grep -q '^measuring' out; }

# A run uses the measurements of the previous ones on all ranks, even if some have another build. On
# a busy machine one run, which measures for 10 s at most, may not measure everything.
measured_by_another_build() {
    local auto=("${train[@]}" --timeout $brief --layout auto --steps 1) left=10
    make_other_build
    while measures mpi 2 "${auto[@]}" && [ $((left -= 1)) -gt 0 ]; do :; done
    ! measures mpi_where 2 "> 0" 'shift; set -- ./other_build "$@"' "${auto[@]}" ||
        why="it measured again"
}

# unlike NAME STATUS LINE ARGS...: four processes train; ranks 2 and 3 have the additional ARGS,
# start in $folder and run $other. The job must end with STATUS and print LINE (a regular
# expression; "": no line) on stderr.
unlike() { check "$1" unlike_ranks "${@:2}"; }
unlike_ranks() {
    local want=$1 line=$2 status
    shift 2
    mpi_where 4 ">= 2" \
        "cd '${folder:-$dir}'; shift; set -- '${other:-${train[0]}}' \"\$@\" ${*@Q}" \
        "${train[@]}" --steps 2 --layout d4 "${both[@]}" >out 2>err
    status=$?
    only_ranks
    [ $status = "$want" ] || why="status $status, not $want"
    [ -z "$line" ] || grep -q "^train_gpt: $line" err || why="no line \"$line\""
    # both ranks that have a wrong option print a line
    [ "$(wc -l <err)" -le 2 ] || why="$(wc -l <err) lines on stderr"
}

# Ranks that are started with different options, programs or files refuse to train. Only options
# that may differ between ranks are accepted.
unlike_starts() {
    local both=() folder other commit option unequal size="of [0-9]* bytes (checksum [0-9a-f]*)"
    both=(--model "$(printf 'seq=10,%.0s' {1..700})layers=1,heads=2,channels=8")
    unlike "ranks with another end of a long option" 2 \
        "ranks 2-3 were started with --model .*channels=4, rank 0 with .*channels=8$" \
        --model "${both[1]/%8/4}"
    both=()
    unlike "ranks with a wrong option" 2 "rank [23]: unknown option --bogus" --bogus 1
    "${train[@]}" --steps 1 --json run.json >out 2>err
    if ! grep -q '"kernels":"portable"' run.json; then
        unequal="ranks 2-3 were started with --kernels portable, rank 0 with .*: "
        unlike "ranks with other kernels" 0 "rank 0.*: warning: $unequal" --kernels portable
        for option in "--exact" "--audit-every 1"; do
            read -ra both <<<"$option"
            unlike "ranks of $option with other kernels" 2 "$unequal${both[0]} needs the" \
                --kernels portable
        done
    fi
    both=(--val shard.bin)
    unlike "ranks without an input of others" 2 \
        "ranks 2-3 were started with --val left out, rank 0 with a path$" --val ""
    both=()
    unlike "ranks with outputs of their own" 0 "" --csv losses.csv --ledger none
    mkdir -p stale
    { head -c 5000 shard.bin && printf '\1\0' && tail -c +5003 shard.bin; } >stale/shard.bin
    folder=$dir/stale unlike "ranks with another shard of the same name" 2 \
        "ranks 2-3 were started with --train shard.bin $size, rank 0 with ${size#of }$"
    mkdir -p apart && ln -s ../shard.bin apart/shard.bin
    "${train[@]}" --steps 1 --export-hf apart/given >out 2>err
    cp -r apart/given . && sed -i 's/1e-05/2e-05/' apart/given/config.json
    both=(--init given/model.safetensors)
    folder=$dir/apart unlike "ranks with another description of the weights" 2 \
        "ranks 2-3 were started with --init given/config.json $size, rank 0 with ${size#of }$"
    both=(--init given)
    rm -r apart/given
    folder=$dir/apart unlike "ranks without the weights of others" 1 \
        "rank 2 on [^:]*: --init given: there is no such file or folder$"
    mkdir -p apart/save && echo process 3 on node7 >apart/save/.lock # as another run leaves it
    for option in --save --export-hf --export-llmc; do
        both=("$option" save)
        folder=$dir/apart unlike "ranks with a folder of their own for $option" 1 "$(echo \
            'rank [23] on [^:]*: rank 0 created save.*, but this rank does not see it: the folder' \
            'must be on a file system that all nodes share$')"
        rm -rf save apart/save
    done
    mkdir -p traces
    both=(--trace traces/trace.json)
    folder=$dir/apart unlike "a trace that only rank 0 can write" 0 ""
    both=()
    commit=$(sed -n 's/.*"commit":"\([^"]*\)".*/\1/p' run.json | head -1)
    sed "s/$commit/${commit//?/x}/g" "${train[0]}" >other_commit && chmod +x other_commit
    other=$dir/other_commit unlike "ranks with a program of another commit" 2 \
        "ranks 2-3 were started with a program of commit xx*, rank 0 with $commit$"
    make_other_build
    unequal='ranks 2-3 were started with a program of checksum .*'
    other=$dir/other_build unlike "ranks with another build of the commit" 0 \
        "rank 0.*: warning: $unequal: builds of one commit may round differently$"
    both=(--exact)
    other=$dir/other_build unlike "ranks of --exact with another build of the commit" 2 \
        "$unequal: --exact needs the same build on every rank$"
}

# Two emulated GPUs, and one rank has no NCCL, another NCCL, or no GPU: all ranks train on the CPU
# and print why, or refuse to train.
emulated=("$programs/train_gpt_emu" --train shard.bin --eval-every 0 --threads 1 --micro 2)
small=(--model layers=1,heads=2,channels=8,seq=16,vocab=64)
unlike_devices() {
    local unlike words run=("${emulated[@]}" "${small[@]}" --layout d2 --steps 1)
    while IFS=: read -r unlike words; do
        runs mpi_where 2 "> 0" "$unlike" "${run[@]}"
        grep -q "not on the GPU that is here: rank 1 on [^:]*: $words" out ||
            why="$unlike: no line says so"
        [[ $words != --kernels* ]] || continue # of the command line, and refused for all ranks
        mpi_where 2 "> 0" "$unlike" "${run[@]}" --backend cuda >out 2>err &&
            why="$unlike: --backend cuda is not refused"
        [ "$(lines "train_gpt_emu: --backend cuda: rank 1 on [^:]*: $words")" = 1 ] ||
            why="$unlike: --backend cuda does not say why"
    done <<'UNLIKE'
export EMU_NCCL=0:ranks on GPUs that do not share memory need NCCL, which cannot be loaded
export EMU_NCCL=22703:this rank has NCCL 22703, rank 0 has 22809
export EMU_DEVICES=0:no CUDA-capable device is detected
set -- "$@" --kernels portable:--kernels names a set
UNLIKE
}

# GPUs of two kinds cause a warning, and the planner does not use a measurement of either.
other_kind() {
    runs mpi_where 2 "> 0" 'export EMU_KIND="NVIDIA B1"' "${emulated[@]}" "${small[@]}" \
        --batch 64 --steps 6 --layout auto --refine 0 --calibrate again
    [ "$(grep -c "warning: --calibrate measures CPUs only" err)" = 1 ] || why="it measured"
    [ "$(grep -c "warning: GPUs differ.*: this GPU is NVIDIA B1, that of rank 0 emu" err)" = 1 ] ||
        why="no warning"
    grep -q "^plan .* were predicted .*: other layouts may be faster; --refine 8 tries" out ||
        why="other advice"
    EMU_KIND="NVIDIA H200" runs mpi_where 2 "> 0" 'export EMU_KIND="NVIDIA A30"' "${emulated[@]}" \
        "${small[@]}" --batch 64 --dtype bf16 --plan
    grep -q "^plan .* on 2 x NVIDIA A30: " out || why="a plan for the faster kind"
}

# One process for each emulated GPU has the losses of the CPU: over NCCL, with and without recorded
# graphs, and over each other's memory.
printed_losses() { sed -n 's/^\(step .* loss [0-9.]* | norm [0-9.]*\) .*/\1/p' "$1"; }
train_on_devices() {
    local run=("${emulated[@]}" "${small[@]}" --batch 64 --steps 2) more
    "${run[@]}" --backend cpu >cpu 2>err || why="the processor: status $?"
    for more in z2 "d2+zero1 --graphs none" "x2+sp --overlap bulk+fused"; do
        # shellcheck disable=SC2086
        runs mpi 2 "${run[@]}" --backend cuda --layout $more
        [ "$(printed_losses out)" = "$(printed_losses cpu)" ] || why="$more: other losses"
    done
}

# The GPU of rank 1 has less memory than that of rank 0. A layout that does not fit there is refused
# before anything is allocated. A plan fits, because every rank prices the devices of all ranks.
little_memory() {
    local run=(mpi_where 2 "> 0" "export EMU_MEMORY=90" "${emulated[@]}" --backend cuda
        --model layers=2,heads=4,channels=256,seq=64,vocab=512 --batch 512)
    "${run[@]}" --layout d2 >out 2>err && why="nothing is refused"
    grep -q "a rank, 58.0 MiB are available on the device of rank 1; nothing was allocated" err ||
        why="rank 1 is not named"
    runs "${run[@]}" --layout auto --plan
    grep -q "too large for 58 MiB a rank" out || why="the plan is for other memory"
}

sums() {
    local n
    # huge pages, if glibc and the system have them: page faults would take half of the time
    export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    for n in 2 5; do tries 2 "sums of $n ranks" same_sums "$n"; done
    # Nodes with several ranks of a group: all nodes, or all but the last one. Every second rank is
    # a group, too: of 8 ranks 4, as on two nodes or as on four. Ranks on nodes of their own: of 6,
    # neighbours send as if they shared one; 7 have no pairs.
    for n in "8 2" "8 4" "6 2" "5 4" "6 1" "7 1"; do
        MESH_NODE_RANKS=${n#* } tries 2 "sums of ${n% *} ranks, ${n#* } a node" same_sums "${n% *}"
    done
}
faults() {
    ends "die() on one rank" 1 "rank 1 on $(hostname): the disk is full" mpi 4 "$job" die
    tries 5 "a rank is killed" fault 'kill -KILL $victim' 'rank [0-9]' 137 1 mpi 4 "$job" loop
    tries 2 "a rank is stopped" fault 'kill -STOP $victim' 'rank 2' 75 3 mpi 4 "$job" loop
    MESH_NODE_RANKS=2 tries 5 "a rank of two nodes is killed" \
        fault 'kill -KILL $victim' 'rank [0-9]' 137 1 mpi 4 "$job" loop
    ends "unequal collectives" 1 'rank 1' mpi 4 "$job" uneven
    LIMIT=$brief check "nobody waits, all compute" runs mpi 4 "$job" compute
}
training() {
    local each
    for each in d4 d2.x2+sp x2.y2; do check "training with $each" same_losses $each; done
    check "a trace of processes" traced
    "${train[@]}" --steps 5 --exact --json one.json >out 2>err
    for each in "2 x2+sp" "3 y3" "4 x4" "4 d2.x2" "4 x2.y2+stay=y" "4 x4+sp 2"; do
        # shellcheck disable=SC2086
        check "the same bits on $each" same_bits $each
    done
}
layouts() {
    check "every layout in one job" every_layout
    check "schedules beside each other in one job" every_schedule
    check "ranks with different numbers of threads" unlike_teams
    if unshare --uts true 2>/dev/null; then check "nodes with one rank and three" unlike_nodes
    else skip "nodes with one rank and three" "needs root"; fi
    check "processors of two kinds" unlike_processors
    check "costs that another build has measured" measured_by_another_build
    check "no bar under a launcher" no_bar
}
starts() {
    ends "a shard that is not there" 1 "nowhere.bin" mpi 4 "$programs/train_gpt" \
        --train nowhere.bin --model layers=1,heads=2,channels=8 --layout d4
    ends "a shard that one rank lacks" 1 "rank 1 on $(hostname): cannot open shard.bin" \
        mpi_where 2 "== 1" "cd /" "${train[@]}" --layout d2
    ends "weights that are not there" 1 "nowhere" mpi 4 "${train[@]}" --init nowhere --layout d4
    unlike_starts
    export EMU_DEVICES=2
    check "ranks with unlike devices" unlike_devices
    check "training on two devices" train_on_devices
    check "a device with less memory" little_memory
    check "GPUs of two kinds" other_kind
}
saves() {
    check "a save fails on one rank" failed_save
    ends "a folder that holds a run" 1 "up to step 8: --resume continues it" mpi 4 "${train[@]}" \
        --save save
    if [ "$open_mpi" -lt 5 ]; then tries 2 "a signal to the launcher" signalled TERM
    else skip "a signal to the launcher" "Open MPI $open_mpi kills ranks 0.25 s after SIGTERM"; fi
    tries 2 "a signal of a batch system" signalled USR1
    check "a signal to one rank" one_signalled
    tries 2 "a rank of a training run is killed" interrupted KILL
    tries 2 "a rank of a training run is stopped" interrupted STOP
    tries 2 "a rank is stopped, those that wait name it" stopped_is_named
}

# ---- environment variables of launchers, without a launcher

# srun starts four processes that cannot reach each other: the first one prints what to do.
srun_alone() {
    local i rank
    for rank in 0 1; do
        env SLURM_{JOB_ID=7,JOBID=7,STEP_ID=0,STEPID=0,STEP_NUM_TASKS=4,NTASKS=4,LOCALID=0} \
            SLURM_{NNODES=1,NODELIST=here,STEP_NODELIST=here,TASKS_PER_NODE=4,PROCID=$rank} \
            "$job" sums >out 2>err.$rank && why="rank $rank: status 0"
    done
    mv err.0 err
    # a child writes the line when it sees that the process has ended, maybe a moment later
    for ((i = 0; i < 50; i++)); do [ ! -s err ] || break; sleep 0.1; done
    [ "$(wc -l <err)" = 1 ] || why="$(wc -l <err) lines"
    grep -q 'started 4 processes.*srun --mpi=pmix or --mpi=pmi2' err ||
        why="the line does not say what to do"
    sleep 3 # as long as the child of the second process would wait for the first one's line
    [ ! -s err.1 ] || why="the second process has lines, too"
}
unsaid_size() {
    runs mpi 3 env -u OMPI_COMM_WORLD_SIZE "$job" bytes
    [ "$(grep -c ' received ' out)" = 3 ] || why="not three ranks"
}
batch_script() {
    runs env SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 "$job" bytes
    grep -q '^rank 0 on .* received 0$' out || why="not one rank"
}
launchers() {
    check "srun without PMI" srun_alone
    check "a launcher that does not say how many" unsaid_size
    check "a batch script of four tasks runs one process" batch_script
    ends "torchrun" 2 "the launcher started 4 processes, but each of them is alone" \
        env ROLE_WORLD_SIZE=4 ROLE_RANK=0 "$job" sums
    ends "variables of a launcher that has ended" 2 "if there is no launcher, unset PMI_SIZE" \
        env PMI_SIZE=4 PMI_RANK=2 "$job" sums
    ends "a launcher that does not say how many, wrongly asked" 2 \
        "--ranks 2, but the launcher started 3" \
        mpi 3 env -u OMPI_COMM_WORLD_SIZE "$job" sums 2
}

# ---- emulated cluster

cut_off() {
    "$lab" up 2 1gbit
    fault '"$lab" cut h1' 'rank [23]' 75 4 cluster "$job" loop
}
# The counters of four ranks show 2 x 3/4 of 4 MB for an all_reduce, which is a reduce_scatter and
# an all_gather, and 3/4 for each of the two others. Between hosts less is sent: ranks of one host
# first sum their parts, and later distribute the result among themselves. So a host sends 1/2 of 4
# MB in each of these four exchanges. Headers of frames add 5 % at most.
counted_bytes() {
    local counted=$((3 * 4 * 1048576)) before after crossed=$((4 * 2 * 1048576))
    before=$("$lab" bytes h0)
    runs cluster "$job" bytes
    after=$("$lab" bytes h0)
    [ "$(grep -c " received $counted\$" out)" = 4 ] || why="counted: $(head -1 out), not $counted"
    [ $((after - before)) -ge $crossed ] && [ $((after - before)) -le $((crossed * 105 / 100)) ] ||
        why="the card sent $((after - before)) bytes, not $crossed"
}

# takes OP BYTES LEAST MOST: the collective must take LEAST to MOST microseconds between two hosts.
takes() {
    local us
    runs measured "$programs/bench_coll" --threads 1 --only "$1" --from "$2" --to "$2" --pool 16 \
        --reps 3 --calls 2
    us=$(awk -v op="$1" '$1 == op { print int($3) }' out)
    [ "${us:-0}" -ge "$3" ] && [ "$us" -le "$4" ] ||
        why="$1 of $2 bytes took ${us:-no} us, not $3 to $4"
}

# Two racks with one host each: all frames that h0's card sends leave its rack over the trunk, at
# the trunk's rate: 2 MiB take 88 ms. The card is five times as fast, so the trunk's queue may drop
# frames, which TCP sends again: up to a tenth of the frames may be dropped.
over_the_trunk() {
    local sent trunk
    takes all_gather 4194304 84000 130000
    sent=$("$lab" bytes h0)
    trunk=$("$lab" bytes r0)
    [ $((trunk * 10)) -ge $((sent * 9)) ] || why="the trunk carried $trunk bytes of $sent"
}

# Two ranks on each host train while the cable is unplugged for a second: TCP sends the lost frames
# again, and the losses are those of threads.
cut_for_a_second() {
    local job_pid run=("${train[@]}" --steps 250 --layout z2.x2 --json)
    rm -f calm.json cut.json
    : >out
    cluster "${run[@]}" cut.json >>out 2>err &
    job_pid=$!
    comes has_lines 5 '^step' out || why="the run does not begin"
    "$lab" cut h1
    sleep 1
    "$lab" mend h1
    [ "$(losses cut.json | wc -l)" -lt 250 ] || why="the run was over before the cut"
    wait $job_pid || why="status $?"
    "${run[@]}" calm.json --ranks 4 >out 2>>err || why="status $? without a cut"
    [ "$(losses cut.json | wc -l)" = 250 ] && cmp -s <(losses cut.json) <(losses calm.json) ||
        why="losses differ"
}

# The cable stays unplugged: ranks of both hosts report it in time, and the newest checkpoint can be
# continued.
cut_in_training() {
    local job_pid start status
    "$lab" up 2 1gbit
    rm -rf save
    cluster "${train[@]}" --timeout $brief --steps 1000000 --save save --save-every 20 \
        --layout z2.x2 >out 2>err &
    job_pid=$!
    comes saved || why="the run does not begin"
    start=$SECONDS
    "$lab" cut h1
    wait $job_pid
    status=$?
    [ $status = 75 ] || why="status $status, not 75"
    [ $((SECONDS - start)) -le $((in_a_save + slack)) ] || why="it took $((SECONDS - start)) s"
    grep -q 'on h0: waited .* s for .*not there: .*rank [23]' err &&
        grep -q 'on h1: waited .* s for .*not there: .*rank [01]' err ||
        why="no line of each host names a rank of the other"
    continues
}

# If the link is cut before the start, MPI itself waits, without a message.
without_a_link() {
    local start=$SECONDS status
    START=$brief LIMIT=$brief cluster "$job" loop >out 2>err
    status=$?
    [ $status = 75 ] || why="status $status, not 75"
    [ $((SECONDS - start)) -le $((brief + slack + 2)) ] || why="it took $((SECONDS - start)) s"
    [ "$(lines "rank [0-3] on h[01]: MPI has not started after $brief s: ")" -ge 1 ] ||
        why="no line says that MPI has not started"
}

# Each of two ranks sends 128 KiB over a cable with a latency of 20 ms, without a handshake: 21 ms;
# with a handshake it would be 61. Four such all_gathers in flight at once take 4 ms longer than
# one, as parallel/step/schedule.h predicts; one after the other they would take 64 ms longer.
one_way() {
    local missing
    "$lab" up 2 1gbit
    if ! missing=$("$lab" delay 20000); then
        skip "a message of 128 KiB takes one way" "$missing"
        return
    fi
    tries 3 "a message of 128 KiB takes one way" takes all_gather 262144 20000 45000
    tries 3 "what is under way together has one latency" one_latency
    "$lab" delay 0
}
one_latency() {
    local more
    runs measured "$job" together
    more=$(awk '$1 == "one" { print int($5 - $2) }' out)
    [ -n "$more" ] && [ "$more" -le 20 ] ||
        why="$(cat out): four at once take ${more:-no} ms longer than one, not 4"
}

# Half of an all_reduce of 4 MiB at 200 Mbit/s occupies the link for 88 ms. It needs little
# processor time except for the kernel's part of sending and the emulated switch: some 15 % of the
# matmuls' time. MPI makes progress only inside its calls: matmuls that do not call it hide only the
# transfers that were in flight before.
hidden() {
    local with without
    runs measured "$job" overlap
    without=$(sed -n 's/^without polls: .* \(-\?[0-9]*\) % hidden$/\1/p' out)
    with=$(sed -n 's/^with polls: .* \(-\?[0-9]*\) % hidden$/\1/p' out)
    [ "${with:-0}" -ge 80 ] || why="with polls ${with:-no} % of the matmuls are hidden, not 80"
    [ "${without:-100}" -le 25 ] ||
        why="without polls ${without:-no} % of the matmuls are hidden, not hardly any"
}

# Two hosts are detected as two equal nodes.
detected() {
    runs cluster "$programs/train_gpt" --plan --calibrate none \
        --model layers=1,heads=2,channels=8,seq=8,vocab=17
    grep -q '^2 nodes, 4 ranks (mpi)' out && grep -q '^h1  *like h0: ranks 2-3$' out ||
        why="nodes: $(head -5 out)"
}

# The kernel's table of neighbours (ARP) is too small for many hosts, so lab.sh enters their
# hardware addresses (function introduce): no host has to ask for them.
no_questions() {
    local asked
    asked=$("$lab" on h0 'ip neigh' | grep -v PERMANENT)
    why=${asked:+"h0 asked for $asked"}
    [ "$("$lab" on h0 'ip neigh' | grep -c PERMANENT)" = 2 ] ||
        why="h0 does not know h1's two addresses"
}

# can_lab: can a part create an emulated cluster? Else it is skipped.
can_lab() {
    local missing
    export LAB=$LAB-$1
    if ! missing=$("$lab" can); then
        skip "an emulated cluster: $1" "$missing"
        return 1
    fi
    : >lab # the trap takes the cluster down if this file exists
}
cluster_sums() {
    "$job" sums 4 >threads 2>err
    cluster "$job" sums >processes 2>err || why="status $?"
    cmp -s threads processes || why="sums differ from those of threads"
}
cluster_of_two() {
    can_lab cluster || return
    "$lab" up 2 1gbit
    check "sums on two hosts" cluster_sums
    check "hosts know each other's addresses" no_questions
    check "two hosts are detected" detected
    tries 2 "a link is cut" cut_off
    "$lab" stop
    check "a link is cut before the start" without_a_link
}
# Each test has a new cluster: sockets of killed processes would live on in an old one and disturb
# the next job.
lost_hosts() {
    can_lab hosts || return
    "$lab" up 2 1gbit
    tries 2 "a link is cut for a second" cut_for_a_second
    tries 2 "a link is cut in training" cut_in_training
    "$lab" up 2 1gbit
    # ends before the limit: the rank that hears of the fault first may not have reached the call,
    # and is then reported as missing; Open MPI 5 ends ranks when a socket closes, maybe with 14
    tries 2 "a rank on another host is killed" \
        fault 'kill -KILL $victim' 'rank [0-9]' '137|14' $((open_mpi < 5)) cluster "$job" loop
    "$lab" stop
    tries 2 "a rank on another host is stopped" \
        fault 'kill -STOP $victim' 'rank 2' 75 3 cluster "$job" loop
}
links() {
    can_lab links || return
    "$lab" up 2 1gbit
    check "bytes on the link" counted_bytes
    # An all_reduce of two ranks sends half of the 4 MiB in each of its two exchanges: 176 ms at 200
    # Mbit/s if both directions flow at once, 352 ms if they alternate. A busy machine can keep up
    # with that rate.
    "$lab" up 2 200mbit
    tries 3 "both directions of a link at once" takes all_reduce 4194304 1 260000
    tries 3 "an all_reduce under matmuls" hidden
    one_way
    "$lab" up "1 1" 1gbit 200mbit
    tries 3 "a trunk between racks" over_the_trunk
}

# part NAME: runs the function of a part in its own folder. Its output is shown when it has ended;
# its counts are in NAME/counts.
part() {
    dir=$dir/$1
    cd "$dir" && export XDG_CACHE_HOME=$dir # runs of a part share a cache of their own
    # mpirun's session folder: jobs that shared one would remove it while others use it
    mkdir tmp && export TMPDIR=$dir/tmp
    passed=0 failed=0 skipped=0
    case $1 in cluster) cluster_of_two ;; hosts) lost_hosts ;; *) "$1" ;; esac >said 2>&1
    echo "$passed $failed $skipped" >counts
}
# Prints the output of the parts and adds up their counts. A part without counts is a failure.
collect() {
    local name p f s
    for name; do
        cat "$name/said"
        if read -r p f s <"$name/counts"; then
            passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
        else
            echo "FAIL the part $name did not come to its end"
            failed=$((failed + 1))
        fi
    done 2>/dev/null
}

parts=("$@")
[ $# -gt 0 ] || parts=(sums cluster hosts faults saves starts training layouts launchers links)
if ! [ -s "$programs/mpi.txt" ]; then
    skip "all" "this build has no MPI (tools/setup.sh test installs Open MPI, then build again)"
elif ! open_mpi=$(mpirun --version 2>/dev/null | grep -oP 'Open MPI\) \K\d+'); then
    skip "all" "these tests use Open MPI's mpirun, which is not here"
else
    shard shard.bin 20240520 1 4000 4000
    for name in "${parts[@]}"; do
        mkdir "$name" && cp shard.bin "$name"
        if [ "$name" = links ]; then
            wait
            [ -z "${QUIET_AFTER:-}" ] || ends_within 600 "$QUIET_AFTER"
            (part links)
        else
            while [ "$(jobs -rp | wc -l)" -gt $(($(nproc) + 1)) ]; do wait -n; done
            part "$name" &
        fi
    done
    wait
    collect "${parts[@]}"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $((passed + skipped)) -gt 0 ]
