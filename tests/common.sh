#!/bin/bash
# common.sh: what tests/cli.sh and tests/mpi.sh share; they read it from the top of the tree.
export CUDA_VISIBLE_DEVICES= # a GPU that is here changes nothing

# comes COMMAND...: waits until the command says yes; false when it has not for a minute.
comes() {
    local i
    for ((i = 0; i < 600; i++)); do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    return 1
}
# ends_within SECONDS PID: true when the process has ended, or does so in that time.
ends_within() { timeout "$1" tail --pid="$2" -s 0.1 -f /dev/null; }
# Little-endian 32-bit words of a shard's header.
word() {
    local x
    printf -v x '\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255))
    printf "$x"
}
# shard FILE MAGIC VERSION SAYS TOKENS: llm.c's header that says SAYS tokens, then TOKENS of them
# below 64.
shard() {
    local i x text=
    for ((i = 0; i < $5; i++)); do printf -v x '\\x%02x\\x00' $((i * i % 61)) && text+=$x; done
    { word "$2" && word "$3" && word "$4" && head -c 1012 /dev/zero && printf "$text"; } >"$1"
}
