# Runs the tests in a VM that systemd has booted, and ends the machine. The last line tells the exit code.
# As in ../init.sh: an emulated CPU is some ten times slower, and this kernel takes probes on its functions.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export IPWATCH_TEST_SLOW=5 IPWATCH_TEST_TRACING=1 CI=1
export IPWATCH_TEST_DEBS=/opt/ipwatch IPWATCH_BIN=/usr/bin/ipwatch

code=0
# tests [ARG]...
tests() {
    /opt/ipwatch/e2e --jobs 1 "$@" || code=1
}
# caged [ARG]...: with every daemon in what the unit forbids (tests/support/unit.rs): its lines without those that
# make it this service.
caged() {
    echo "-- in the unit's cage"
    dpkg --force-confold --install "$(ls /opt/ipwatch/*.deb | head -n 1)" >/dev/null
    systemctl disable --now --quiet ipwatch.service
    cage=/run/systemd/system/ipwatch-caged-.service.d
    mkdir -p $cage
    sed -n '/^\[Service\]/,/^\[Install\]/p' /usr/lib/systemd/system/ipwatch.service |
        grep -vE '^(\[I|#|Type|Notify|Exec|Environment|Timeout|Watchdog|Restart|Syslog|Runtime|State|Config)' \
            >$cage/unit.conf
    systemctl daemon-reload
    IPWATCH_TEST_CAGE=unit /opt/ipwatch/e2e "$@" || code=1
}

echo "Linux $(uname -r), $(systemctl --version | head -n 1), $(cut -d ' ' -f 1 /proc/uptime) s after the start"
. /opt/ipwatch/runs
echo "ipwatch-vm: exit $code"
systemctl poweroff --force --force
