#!/bin/bash
# lab.sh: an emulated cluster on one machine. A host is a network namespace with a name of its own,
# a data card of some speed, and a second card for the launcher; both switches live in one more
# namespace, so nothing reaches the machine's own network. Needs root and iproute2.
#
#        h0            h1            h2            h3
#     data  ctl     data  ctl     data  ctl     data  ctl      data 10.91.0.x, ctl 10.92.0.x
#      |     |       |     |       |     |       |     |
#      |     +-------|-----+-------|-----+-------|-----+----   switch ctl as fast as the machine
#      +----+--------+             +----+--------+             r0, r1: a rack each; cards of RATE
#           +------------core-----------+                      core: between racks; trunks of TRUNK
#
#   lab.sh can                        status 0 when this machine can do it, else a line that says
#                                     what is missing
#   lab.sh up HOSTS [RATE [TRUNK]]    4: four hosts; "2 2": in two racks. RATE 1gbit, TRUNK like
#                                     RATE when not given; both directions are shaped
#   lab.sh mpirun HOSTS RANKS COMMAND...   Open MPI, RANKS on each of the first HOSTS; LIMIT_S ends
#                                          it (60)
#   lab.sh first COMMAND...           goes before all other processes of this machine, as FIRST=1
#                                     lab.sh mpirun has its ranks do: for measurements beside
#                                     others' work
#   lab.sh on HOST COMMAND...         runs a command there (also what mpirun reaches the hosts with)
#   lab.sh delay US                   every packet arrives US microseconds later on each data card;
#                                     0: no longer. Says what is missing: iptables, a compiler,
#                                     libnetfilter-queue-dev
#   lab.sh cut HOST, mend HOST        its data cable
#   lab.sh bytes HOST|RACK            that the card of h1, or the trunk of r0, has sent
#   lab.sh stop                       ends every process on the hosts
#   lab.sh down                       removes it all
#
# PACKET=65536 lab.sh up ... : TCP's super-packets as cards take them that cut packets themselves.
# Then a message costs the processor about half as much; but twice as many bytes pass unshaped after
# a pause, so that is for messages of megabytes.
#
# What is obeyed is 0.956 of a rate, the share of frames that is no header, up to 1gbit on a quiet
# machine. LAB names one of several clusters.
set -eu
me=$(realpath "$0")
name=${LAB:-meshlab}
switch=$name-switch
state=/run/$name

# Not "ip netns list", which stumbles over what another cluster takes down meanwhile.
spaces() { ls /run/netns 2>/dev/null; }
host_names() { spaces |
    awk -v p="$name-h" 'index($1, p) == 1 { print substr($1, length(p)) }' | sort -V; }

can() {
    local probe=$name-probe
    [ "$(id -u)" = 0 ] || { echo "an emulated cluster needs root"; return 1; }
    command -v ip >/dev/null && command -v tc >/dev/null ||
        { echo "an emulated cluster needs iproute2"; return 1; }
    if ! { ip netns add $probe && ip -n $probe link add name veth0 type veth peer name veth1 &&
        ip -n $probe link add name bridge0 type bridge &&
        tc -n $probe qdisc add dev veth0 root tbf rate 1gbit burst 32kb limit 1mb; } \
        2>/dev/null; then
        ip netns del $probe 2>/dev/null
        echo "this kernel or container has no network namespaces with veth, bridge and tbf"
        return 1
    fi
    ip netns del $probe
}

# The hardware address of the card with this address: 10.91.0.12 has 02:00:0a:5b:00:0c.
mac_of() { printf '02:00:%02x:%02x:%02x:%02x' ${1//./ }; }

# One cable: card $2 of host $1 with address $3, into switch $4.
plug() {
    ip -n "$name-$1" link add "$2" address "$(mac_of "$3")" type veth peer name "$2-$1" netns \
        $switch
    ip -n "$name-$1" addr add "$3/24" dev "$2"
    ip -n "$name-$1" link set "$2" up
    ip -n $switch link set "$2-$1" master "$4" up
}
# What depends on a rate (200mbit, 1gbit): TCP's super-packets, the bucket of each shaper, and what
# may wait in a card's queue. A bucket smaller than two super-packets would have the kernel cut each
# in software, a large one lets short messages pass unshaped; a long queue has acknowledgements of
# rendezvous stand behind megabytes.
set_limits() {
    local mbit=${1%%[a-z]*}
    [[ $1 != *gbit ]] || mbit=$((mbit * 1000))
    if [ "$mbit" -le 300 ]; then
        packet=8192 bucket=16kb queue=32768
    elif [ "$mbit" -le 2000 ]; then
        packet=16384 bucket=32kb queue=65536
    else
        packet=65536 bucket=256kb queue=1048576
    fi
    [ -z "${PACKET:-}" ] || packet=$PACKET bucket=$((2 * PACKET)) queue=$((2 * PACKET))
}
shape() { tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst $bucket limit "$4"; }

add_switch() { ip -n $switch link add "$1" type bridge && ip -n $switch link set "$1" up; }

# Host $1 with the last byte of its addresses $2, in rack $3, with a card of rate $4.
add_host() {
    ip netns add "$name-$1"
    ip -n "$name-$1" link set lo up
    plug "$1" data "10.91.0.$2" "$3"
    plug "$1" ctl "10.92.0.$2" ctl
    ip -n "$name-$1" link set dev data gso_max_size $packet
    # BBR, a default of some kernels, paces both directions of an exchange down where they meet in a
    # trunk's queue
    ip -n "$name-$1" route change 10.91.0.0/24 dev data congctl cubic
    shape "$name-$1" data "$4" 1mb
    shape $switch "data-$1" "$4" 1mb
    ip netns exec "$name-$1" sysctl -qw net.ipv4.tcp_limit_output_bytes=$queue
    echo "10.91.0.$2 $1" >>$state/hosts
}

# Tells each of $1 hosts the hardware addresses of all others. Asking for them (ARP) fails with many
# hosts: the kernel has one table for the namespaces of all clusters (gc_thresh3: 1024 entries; 32
# hosts need 1984), and when the table is full, new connections never come about. Permanent entries
# do not count.
introduce() {
    local i last
    for ((i = 1; i <= $1; i++)); do
        printf -v last %02x $i
        printf 'neigh replace 10.91.0.%d lladdr 02:00:0a:5b:00:%s dev data nud permanent\n' $i $last
        printf 'neigh replace 10.92.0.%d lladdr 02:00:0a:5c:00:%s dev ctl nud permanent\n' $i $last
    done >$state/neighbours
    for ((i = 1; i <= $1; i++)); do
        grep -v "\.0\.$i lladdr" $state/neighbours | ip -n "$name-h$((i - 1))" -batch -
    done
}

# The cable from rack $1 to the core: its ends are up-r0 in the rack, down-r0 in the core.
add_trunk() {
    local end
    ip -n $switch link add "up-$1" type veth peer name "down-$1"
    ip -n $switch link set "up-$1" master "$1"
    ip -n $switch link set "down-$1" master core
    for end in "up-$1" "down-$1"; do
        ip -n $switch link set "$end" up
        shape $switch "$end" "$2" 256kb
    done
}

up() {
    local racks=($1) rate=${2:-1gbit} r i n=0
    local trunk=${3:-$rate}
    down
    mkdir -p $state
    echo "127.0.0.1 localhost" >$state/hosts
    ip netns add $switch
    set_limits "$rate"
    add_switch ctl
    [ ${#racks[@]} = 1 ] || add_switch core
    for r in "${!racks[@]}"; do
        add_switch "r$r"
        [ ${#racks[@]} = 1 ] || add_trunk "r$r" "$trunk"
        for ((i = 0; i < racks[r]; i++)); do
            add_host h$n $((n + 1)) "r$r" "$rate"
            n=$((n + 1))
        done
    done
    introduce $n
}

# Own host name, shared memory and folder for temporary files: Open MPI names its segments after the
# host.
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

# The kernel may have no netem: packets wait in a queue of each host, and delay.c lets them go.
delay() {
    local us=$1 host slowed=()
    command -v iptables >/dev/null || { echo "a delay needs iptables"; return 1; }
    if [ -f $state/delay.pid ]; then
        kill "$(cat $state/delay.pid)" 2>/dev/null || true
        rm $state/delay.pid
    fi
    for host in $(host_names); do
        ip netns exec "$name-$host" iptables -t raw -F PREROUTING
        slowed+=("$name-$host")
    done
    [ "$us" != 0 ] || return 0
    ${CC:-cc} -O2 -o $state/delay "$(dirname "$me")/delay.c" -lnetfilter_queue 2>$state/delay.log ||
        { echo "a delay needs a compiler and libnetfilter-queue-dev"; return 1; }
    setsid $state/delay "$us" "${slowed[@]}" >$state/delay.log 2>&1 </dev/null &
    echo $! >$state/delay.pid
    sleep 0.3
    kill -0 "$(cat $state/delay.pid)" 2>/dev/null || { cat $state/delay.log; return 1; }
    for host in $(host_names); do
        ip netns exec "$name-$host" iptables -t raw -A PREROUTING -i data -j NFQUEUE \
            --queue-num 0 --queue-bypass
    done
}

# A session is a group of the scheduler's, and the daemon of each host begins one: so ranks have to
# say it themselves.
first() {
    # the group of the machine's first process has no priority of its own, and a kernel may have no
    # groups
    { echo -20 >/proc/self/autogroup; } 2>/dev/null || true
    exec nice -n -20 "$@"
}

# mpi_yield_when_idle 1: each host believes that it owns all cores.
run_mpi() {
    local hosts=$1 ranks=$2 list
    shift 2
    [ -z "${FIRST:-}" ] || set -- "$me" first "$@"
    list=$(for ((i = 0; i < hosts; i++)); do printf 'h%d:%d,' $i "$ranks"; done)
    on h0 "cd $(printf '%q' "$PWD"); exec mpirun -q --allow-run-as-root --timeout ${LIMIT_S:-60} \
        --host ${list%,} -np $((hosts * ranks)) \
        --map-by ppr:$ranks:node --bind-to none --oversubscribe \
        --mca plm_rsh_agent '$me on' --mca oob_tcp_if_include ctl \
        --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include data \
        --mca mpi_yield_when_idle 1 $(printf '%q ' "$@")" </dev/null
}

bytes() {
    case $1 in
    h*) ip netns exec "$name-$1" cat /sys/class/net/data/statistics/tx_bytes ;;
    r*) ip netns exec $switch cat "/sys/class/net/up-$1/statistics/tx_bytes" ;;
    esac
}
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
    [ ! -f $state/delay.pid ] || kill "$(cat $state/delay.pid)" 2>/dev/null || true
    for ns in $(spaces | awk -v p="$name-" 'index($1, p) == 1 { print $1 }'); do
        ip netns del "$ns"
    done
    rm -rf $state
}

verb=$1
shift
case $verb in
can | up | first | on | delay | bytes | stop | down) $verb "$@" ;;
mpirun) run_mpi "$@" ;;
cut) ip -n $switch link set "data-$1" down ;;
mend) ip -n $switch link set "data-$1" up ;;
*) sed -n '2,/^set/s/^# \?//p' "$me" >&2 && exit 2 ;;
esac
