#!/bin/sh
# The first process of a VM with systemd: loads what the tests and the disks need, mounts the system and,
# in it, the disk with what is tested, and becomes systemd. What it changes is in /run.
export PATH=/sbin:/bin:/bb HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

while read -r module; do
    insmod "/modules/$module" || echo "cannot load $module"
done < /modules/order

root=/sysroot
mkdir $root
mount -t ext4 /dev/vda $root && mount -t ext4 -o ro /dev/vdb $root/opt/ipwatch || poweroff -f
mount -t tmpfs -o mode=755 run $root/run

# The tests are a service that is started at boot. No login on the console, which is theirs, and nothing that
# Debian does once a day.
units=$root/run/systemd/system
mkdir -p $units/multi-user.target.wants
cp $root/opt/ipwatch/ipwatch-test.service $units/
ln -s ../ipwatch-test.service $units/multi-user.target.wants/
for unit in getty.target serial-getty@.service proc-sys-fs-binfmt_misc.automount \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
    ln -s /dev/null "$units/$unit"
done

for dir in dev proc sys; do
    mount --move /$dir $root/$dir
done
exec switch_root $root /sbin/init
