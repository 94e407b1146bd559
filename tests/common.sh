#!/bin/bash
# common.sh: functions of tests/cli.sh and tests/mpi.sh, which source it from the top of the tree.
export CUDA_VISIBLE_DEVICES= # results must not depend on a GPU of this machine

# comes COMMAND...: repeats the command until its status is 0; fails after a minute.
comes() {
    local i
    for ((i = 0; i < 600; i++)); do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    return 1
}
# ends_within SECONDS PID: waits until the process ends; fails if it runs longer than SECONDS. A
# zombie has ended: the first process of a container may never wait for it.
ends_within() {
    local end=$((SECONDS + $1))
    while grep -qs '^State:.[^ZX]' "/proc/$2/status"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
# word N: writes N as a little-endian 32-bit word.
word() {
    local x
    printf -v x '\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255))
    printf "$x"
}
# shard FILE MAGIC VERSION SAYS TOKENS: writes llm.c's header, whose count is SAYS, and then TOKENS
# tokens below 64.
shard() {
    local i x text=
    for ((i = 0; i < $5; i++)); do printf -v x '\\x%02x\\x00' $((i * i % 61)) && text+=$x; done
    { word "$2" && word "$3" && word "$4" && head -c 1012 /dev/zero && printf "$text"; } >"$1"
}
