#!/bin/sh
# The first process of a test VM: sets up what a plain machine has, runs what /runs says, and ends
# the machine. The last line it prints tells the exit code.
export PATH=/sbin:/bin:/bb HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security

while read -r module; do
    insmod "/modules/$module" || echo "cannot load $module"
done < /modules/order

# Hybrid, as on hosts that still have both kinds.
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir /sys/fs/cgroup/freezer /sys/fs/cgroup/unified
mount -t cgroup -o freezer freezer /sys/fs/cgroup/freezer
mount -t cgroup2 unified /sys/fs/cgroup/unified

hostname vm
ip link set lo up

# IPWATCH_TEST_SLOW: an emulated CPU is some ten times slower; the kernel's command line may say more.
# IPWATCH_TEST_TRACING: this kernel takes probes on its functions. IPWATCH_TEST_OWN_MACHINE: nobody else needs
# this machine's network.
export IPWATCH_BIN=/bin/ipwatch IPWATCH_TEST_SLOW=${IPWATCH_TEST_SLOW:-5} IPWATCH_TEST_TRACING=1 CI=1
export IPWATCH_TEST_OWN_MACHINE=1 IPWATCH_TEST_CRI=/bin/ipwatch-test-cri IPWATCH_TEST_ROTEL=/bin/rotel

code=0
# tests PROBES [ARG]...
tests() {
    export IPWATCH_TEST_PROBES=$1
    shift
    echo "-- probes: $IPWATCH_TEST_PROBES"
    e2e "$@" || code=1
}
# What the daemon says of itself here, with all that root may do, on one line: `ipwatch-support: JSON`.
support() {
    ipwatch run >/tmp/support.log 2>&1 &
    i=0
    until ipwatch doctor -o json >/tmp/support.json 2>/dev/null || [ $i -ge 120 ]; do
        i=$((i + 1))
        sleep 1
    done
    # With what the canary has shown. Where nothing is attached that it could prove, there is none.
    if ipwatch doctor --canary -o json >/tmp/canary.json 2>/dev/null; then
        mv /tmp/canary.json /tmp/support.json
    fi
    echo "ipwatch-support: {\"kernel\": \"$(uname -r)\", \"doctor\": $(tr -d '\n' </tmp/support.json)}"
    [ -s /tmp/support.json ] || code=1
    kill $!
}
# recording NAME TEST: what a recorder beside that test's daemon saw, the longest if it started several: lines
# `ipwatch-recording: NAME BASE64`.
recording() {
    export IPWATCH_TEST_PROBES=all IPWATCH_TEST_RECORDINGS=/tmp/recordings
    mkdir /tmp/recordings
    e2e --jobs 1 "$2" || code=1
    gzip -c "$(ls -S /tmp/recordings/* | head -n 1)" | base64 | while read -r line; do
        echo "ipwatch-recording: $1 $line"
    done
    rm -r /tmp/recordings
}
echo "Linux $(uname -r)"
. /runs
echo "ipwatch-vm: exit $code"
poweroff -f
