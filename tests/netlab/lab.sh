#!/bin/bash
# lab.sh: an emulated cluster on one machine. A host is a network namespace with a name of its own, a data card
# of some speed, and a second card for the launcher; both switches live in one more namespace, so nothing
# reaches the machine's own network. Needs root and iproute2.
#
#        h0            h1            h2
#     data  ctl     data  ctl     data  ctl         data 10.91.0.x, ctl 10.92.0.x
#      |     |       |     |       |     |
#      |     +-------|-----+-------|-----+----  switch ctl       as fast as the machine
#      +-------------+-------------+----------  switch data      shaped, both directions
#
#   lab.sh can                        status 0 when this machine can do it, else a line that says what is missing
#   lab.sh up HOSTS [RATE]            1gbit when RATE is not given
#   lab.sh mpirun HOSTS RANKS COMMAND...   Open MPI, RANKS on each of the hosts; LIMIT_S ends it (60)
#   lab.sh on HOST COMMAND...         runs a command there (also what mpirun reaches the hosts with)
#   lab.sh cut HOST, mend HOST        its data cable
#   lab.sh bytes HOST                 that its data card has sent
#   lab.sh stop                       ends every process on the hosts
#   lab.sh down                       removes it all
set -eu
me=$(realpath "$0")
name=${LAB:-meshlab}
switch=$name-switch
state=/run/$name

host_names() { ip netns list | awk -v p="$name-h" 'index($1, p) == 1 { print substr($1, length(p)) }' | sort -V; }

can() {
    local probe=$name-probe
    [ "$(id -u)" = 0 ] || { echo "an emulated cluster needs root"; return 1; }
    command -v ip >/dev/null && command -v tc >/dev/null || { echo "an emulated cluster needs iproute2"; return 1; }
    if ! { ip netns add $probe && ip -n $probe link add name veth0 type veth peer name veth1 && ip -n $probe link add name bridge0 type bridge &&
        tc -n $probe qdisc add dev veth0 root tbf rate 1gbit burst 32kb limit 1mb; } 2>/dev/null; then
        ip netns del $probe 2>/dev/null
        echo "this kernel or container has no network namespaces with veth, bridge and tbf"
        return 1
    fi
    ip netns del $probe
}

# One cable: card $2 of host $1 with address $3, into switch $4.
plug() {
    ip -n "$name-$1" link add "$2" type veth peer name "$2-$1" netns $switch
    ip -n "$name-$1" addr add "$3/24" dev "$2"
    ip -n "$name-$1" link set "$2" up
    ip -n $switch link set "$2-$1" master "$4" up
}
# A bucket smaller than two of TCP's super-packets would have the kernel cut each in software, a large one lets
# short messages pass unshaped: small packets, small bucket.
shape() { tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst 32kb limit 1mb; }

up() {
    local hosts=$1 rate=${2:-1gbit} i s
    down
    mkdir -p $state
    echo "127.0.0.1 localhost" >$state/hosts
    ip netns add $switch
    for s in data ctl; do ip -n $switch link add $s type bridge && ip -n $switch link set $s up; done
    for ((i = 0; i < hosts; i++)); do
        ip netns add $name-h$i
        ip -n $name-h$i link set lo up
        plug h$i data 10.91.0.$((i + 1)) data
        plug h$i ctl 10.92.0.$((i + 1)) ctl
        ip -n $name-h$i link set dev data gso_max_size 16384
        shape $name-h$i data "$rate"
        shape $switch data-h$i "$rate"
        # what waits in the card's queue stays short: else acknowledgements of rendezvous stand behind megabytes
        ip netns exec $name-h$i sysctl -qw net.ipv4.tcp_limit_output_bytes=65536
        echo "10.91.0.$((i + 1)) h$i" >>$state/hosts
    done
}

# Own host name, shared memory and folder for temporary files: Open MPI names its segments after the host.
on() {
    local host=$1
    shift
    # shellcheck disable=SC2016
    exec ip netns exec "$name-$host" unshare --uts --ipc --mount --propagation private bash -c '
        host=$1 state=$2; shift 2
        hostname "$host"
        mount -t tmpfs -o size=2g shm /dev/shm
        mount --bind "$state/hosts" /etc/hosts
        export TMPDIR=$state/tmp-$host; mkdir -p "$TMPDIR"
        exec bash -c "$*"' on "$host" $state "$@"
}

# mpi_yield_when_idle 1: each host believes that it owns all cores.
run_mpi() {
    local hosts=$1 ranks=$2 list
    shift 2
    list=$(for ((i = 0; i < hosts; i++)); do printf 'h%d:%d,' $i "$ranks"; done)
    on h0 "cd $(printf '%q' "$PWD"); exec mpirun -q --allow-run-as-root --timeout ${LIMIT_S:-60} --host ${list%,} -np $((hosts * ranks)) \
        --map-by ppr:$ranks:node --bind-to none --oversubscribe --mca plm_rsh_agent '$me on' --mca oob_tcp_if_include ctl \
        --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include data \
        --mca mpi_yield_when_idle 1 $(printf '%q ' "$@")" </dev/null
}

bytes() { ip netns exec "$name-$1" cat /sys/class/net/data/statistics/tx_bytes; }
pids() { for h in $(host_names); do ip netns pids "$name-$h"; done; }
# mpirun returns a second or two before the last remote rank is gone
stop() {
    local i
    for ((i = 0; i < 25; i++)); do
        [ -n "$(pids)" ] || return 0
        pids | xargs -r kill -9 2>/dev/null || true
        sleep 0.2
    done
}
down() {
    local ns
    stop
    for ns in $(ip netns list | awk -v p="$name-" 'index($1, p) == 1 { print $1 }'); do ip netns del "$ns"; done
    rm -rf $state
}

verb=$1
shift
case $verb in
can | up | on | bytes | stop | down) $verb "$@" ;;
mpirun) run_mpi "$@" ;;
cut) ip -n $switch link set "data-$1" down ;;
mend) ip -n $switch link set "data-$1" up ;;
*) sed -n '2,/^set/s/^# \?//p' "$me" >&2 && exit 2 ;;
esac
