#!/bin/bash
# lab.sh: an emulated cluster on one machine. A host is a network namespace with a host name, a data
# card of limited rate, and a second card for the launcher. Both switches are in one more namespace,
# so no packet reaches the machine's own network. Needs root and iproute2.
#
#        h0            h1            h2            h3
#     data  ctl     data  ctl     data  ctl     data  ctl      data 10.91.0.x, ctl 10.92.0.x
#      |     |       |     |       |     |       |     |
#      |     +-------|-----+-------|-----+-------|-----+----   switch ctl as fast as the machine
#      +----+--------+             +----+--------+             r0, r1: a rack each; cards of RATE
#           +------------core-----------+                      core: between racks; trunks of TRUNK
#
#   lab.sh can                        status 0 if this machine can emulate a cluster; else a line
#                                     that says what is missing
#   lab.sh up HOSTS [RATE [TRUNK]]    HOSTS 4: four hosts; "2 2": two hosts in each of two racks.
#                                     RATE of the cards: 1gbit unless given; TRUNK of the links
#                                     between racks: RATE unless given. Both directions are shaped
#   lab.sh mpirun HOSTS RANKS COMMAND...   Open MPI with RANKS ranks on each of the first HOSTS;
#                                          ends after LIMIT_S seconds (60)
#   lab.sh first COMMAND...           runs a command with priority over all other processes of this
#                                     machine; FIRST=1 lab.sh mpirun runs its ranks so. For
#                                     measurements while others use the machine
#   lab.sh on HOST COMMAND...         runs a command on a host (mpirun uses it to reach the hosts)
#   lab.sh delay US                   every packet reaches a data card US microseconds later; 0: no
#                                     delay. Prints what is missing: iptables, a compiler,
#                                     libnetfilter-queue-dev
#   lab.sh cut HOST, mend HOST        disconnects, or connects, the data card of a host
#   lab.sh bytes HOST|RACK            bytes that the data card of a host (h1) or the trunk of a rack
#                                     (r0) has sent
#   lab.sh stop                       ends every process on the hosts
#   lab.sh down                       removes the cluster
#
# PACKET=65536 lab.sh up ... : TCP hands packets of 64 KiB to the card, as to cards that cut packets
# themselves. A message then costs the processor about half as much, but after a pause twice as many
# bytes pass unshaped. So use it for messages of megabytes.
#
# On a quiet machine the measured rate is 0.956 of RATE, for rates up to 1gbit: headers take the
# rest of each frame. LAB names the cluster, if there are several.
set -eu
me=$(realpath "$0")
name=${LAB:-meshlab}
switch=$name-switch
state=/run/$name

# Not "ip netns list", which fails when another cluster removes namespaces meanwhile.
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

# The hardware address that belongs to an IP address: 10.91.0.12 has 02:00:0a:5b:00:0c.
mac_of() { printf '02:00:%02x:%02x:%02x:%02x' ${1//./ }; }

# Connects card $2 of host $1, with address $3, to switch $4.
plug() {
    ip -n "$name-$1" link add "$2" address "$(mac_of "$3")" type veth peer name "$2-$1" netns \
        $switch
    ip -n "$name-$1" addr add "$3/24" dev "$2"
    ip -n "$name-$1" link set "$2" up
    ip -n $switch link set "$2-$1" master "$4" up
}
# Sets the limits that depend on a rate (200mbit, 1gbit): the size of the packets that TCP hands to
# a card, the bucket of each shaper, and the bytes that may wait in a card's queue. A bucket smaller
# than two packets would make the kernel cut each packet in software; a large bucket lets short
# messages pass unshaped. In a long queue acknowledgements of rendezvous messages wait behind
# megabytes.
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

# Adds host $1 to rack $3: last byte of its addresses $2, rate of its data card $4.
add_host() {
    ip netns add "$name-$1"
    ip -n "$name-$1" link set lo up
    plug "$1" data "10.91.0.$2" "$3"
    plug "$1" ctl "10.92.0.$2" ctl
    ip -n "$name-$1" link set dev data gso_max_size $packet
    # not BBR, the default of some kernels: if both directions of an exchange meet in the queue of a
    # trunk, BBR slows both down
    ip -n "$name-$1" route change 10.91.0.0/24 dev data congctl cubic
    shape "$name-$1" data "$4" 1mb
    shape $switch "data-$1" "$4" 1mb
    ip netns exec "$name-$1" sysctl -qw net.ipv4.tcp_limit_output_bytes=$queue
    echo "10.91.0.$2 $1" >>$state/hosts
}

# Gives each of $1 hosts the hardware addresses of all others, as permanent entries. With many hosts
# ARP fails: the kernel has one neighbour table for the namespaces of all clusters (gc_thresh3: 1024
# entries; 32 hosts need 1984), and when the table is full no new connection is made. Permanent
# entries do not count.
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

# Connects rack $1 to the core with rate $2: the ends of the link are up-r0 in the rack and down-r0
# in the core.
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

# Each host has its own host name, shared memory and folder for temporary files, because Open MPI
# names its segments after the host.
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

# The kernel may have no netem, so packets wait in a queue of each host until delay.c accepts them.
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

# The scheduler treats each session as a group, and the daemon of each host begins a session. So
# each rank sets its own priority.
first() {
    # fails without harm: the group of the machine's first process has no priority of its own, and
    # some kernels have no groups
    { echo -20 >/proc/self/autogroup; } 2>/dev/null || true
    exec nice -n -20 "$@"
}

# mpi_yield_when_idle 1: each host believes that it owns all cores.
run_mpi() {
    local hosts=$1 ranks=$2 list launcher_card=prte_if_include
    shift 2
    [[ $(mpirun --version) != *"Open MPI) 4"* ]] || launcher_card=oob_tcp_if_include
    [ -z "${FIRST:-}" ] || set -- "$me" first "$@"
    list=$(for ((i = 0; i < hosts; i++)); do printf 'h%d:%d,' $i "$ranks"; done)
    on h0 "cd $(printf '%q' "$PWD"); exec mpirun --allow-run-as-root --timeout ${LIMIT_S:-60} \
        --host ${list%,} -np $((hosts * ranks)) \
        --map-by ppr:$ranks:node --bind-to none --oversubscribe \
        --mca plm_rsh_agent '$me on' --mca $launcher_card ctl \
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
# Repeats, because mpirun returns a second or two before the last remote rank has ended.
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
