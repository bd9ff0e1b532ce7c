#!/bin/sh
# Hosts on one machine, for root: each with network, host name, IPC and /dev/shm of its own, on one
# switch. All of it goes when the last process inside ends.
#
#   virtual_hosts.sh run N [--rate R [--queue Q] [--slow WHO R2]] [--two] [--six] COMMAND...
#                                                 COMMAND on the first of the hosts vh1 ... vhN
#   virtual_hosts.sh [OPTIONS] HOST COMMAND...    what mpirun calls in place of ssh
#
# R limits each host's link, each direction for itself, in the units of tc(8): 1gbit. A token bucket
# of the kernel (sch_tbf) does it, which costs next to no CPU time and drops nothing unless only Q
# may wait in it (20kb): then it drops what comes too fast, as switches do. With --slow the link of
# host WHO (3), or what two hosts send each other (1-3), has the rate R2. With --two each host has a
# second interface, eth1, at 10.78.0.I, that MPI does not use. With --six hosts have addresses of IPv6
# alone: fd77::I.
set -eu
hosts=/run/netns

slow_between() { # what host $1 sends has its rate, but what is for host number $2 has the slow one
    tc -n "$1" qdisc add dev eth0 root handle 1: htb default 1
    tc -n "$1" class add dev eth0 parent 1: classid 1:1 htb rate "$rate" quantum 60000
    tc -n "$1" class add dev eth0 parent 1: classid 1:2 htb rate "$slow_rate" quantum 60000
    tc -n "$1" filter add dev eth0 parent 1: protocol ip u32 match ip dst "10.77.0.$2/32" flowid 1:2
}

if [ "$1" = run ]; then # namespaces for the switch and for what the hosts are kept in
    shift
    exec unshare --mount --net "$0" inside "$@"
fi

if [ "$1" = inside ]; then
    count=$2
    shift 2
    rate=
    if [ "$1" = --rate ]; then
        rate=$2
        shift 2
    fi
    waiting="burst 70kb latency 50ms"
    if [ "$1" = --queue ]; then
        waiting="burst 5kb limit $2"
        shift 2
    fi
    slow=
    if [ "$1" = --slow ]; then
        slow=$2 slow_rate=$3
        shift 3
    fi
    two=
    if [ "$1" = --two ]; then
        two=yes
        shift
    fi
    six=
    if [ "$1" = --six ]; then
        six=yes
        shift
    fi
    mkdir -p $hosts
    mount -t tmpfs tmpfs $hosts
    touch $hosts/switch
    mount --bind /proc/self/ns/net $hosts/switch # keeps it when this process moves to a host
    ip link add switch type bridge
    ip link set switch up
    if [ "$two" ]; then # on one switch, each interface would answer for the other's address
        ip link add switch2 type bridge
        ip link set switch2 up
    fi
    echo "127.0.0.1 localhost" > $hosts/etc_hosts
    sed 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf > $hosts/nsswitch # no waiting for DNS
    for i in $(seq "$count"); do
        address=10.77.0.$i prefix=24
        if [ "$six" ]; then address=fd77::$i prefix=64; fi
        echo "$address vh$i" >> $hosts/etc_hosts
        ip netns add "vh$i"
        ip link add "to$i" type veth peer name eth0 netns "vh$i"
        ip link set "to$i" master switch up
        ip -n "vh$i" address add "$address/$prefix" dev eth0 ${six:+nodad}
        ip -n "vh$i" link set eth0 up
        ip -n "vh$i" link set lo up
        if [ "$rate" ]; then
            # A burst just over one packet of 64 KiB, as the kernel hands them on: a larger one lets whole
            # messages through at full speed. to$i sends to the host, its eth0 sends from it.
            own=$rate
            if [ "$slow" = "$i" ]; then own=$slow_rate; fi
            tc qdisc add dev "to$i" root tbf rate "$own" $waiting
            case $slow in
                "$i"-*) slow_between "vh$i" "${slow#*-}" ;;
                *-"$i") slow_between "vh$i" "${slow%-*}" ;;
                *) tc -n "vh$i" qdisc add dev eth0 root tbf rate "$own" $waiting ;;
            esac
        fi
        if [ "$two" ]; then
            ip link add "too$i" type veth peer name eth1 netns "vh$i"
            ip link set "too$i" master switch2 up
            ip -n "vh$i" address add "10.78.0.$i/24" dev eth1
            ip -n "vh$i" link set eth1 up
        fi
        touch "$hosts/uts.vh$i" "$hosts/ipc.vh$i"
        unshare --uts="$hosts/uts.vh$i" --ipc="$hosts/ipc.vh$i" hostname "vh$i"
        mkdir "$hosts/shm.vh$i"
        mount -t tmpfs -o mode=1777 tmpfs "$hosts/shm.vh$i"
    done
    exec "$0" vh1 exec "$@"
fi

while [ "${1#-}" != "$1" ]; do # options of ssh that mpirun gives
    case $1 in -o | -p | -l | -i) shift ;; esac
    shift
done
host=$1
shift
if [ "$1" = exec ]; then shift; else set -- /bin/sh -c "$*"; fi # as ssh, or word by word
exec nsenter --net="$hosts/$host" --uts="$hosts/uts.$host" --ipc="$hosts/ipc.$host" \
    unshare --mount sh -ec '
    mount --bind "$0/shm.$1" /dev/shm
    mount --bind "$0/etc_hosts" /etc/hosts
    mount --bind "$0/nsswitch" /etc/nsswitch.conf
    shift
    exec "$@"' $hosts "$host" "$@"
