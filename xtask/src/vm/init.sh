#!/bin/busybox sh
# PID 1 of a guest: lays a writable layer over the host's tree, goes there, and reports how that ended.
# What is run there is guest.sh's business.
export PATH=/bin HOME=/root
/bin/busybox mkdir -p /proc /sys /dev /host /layer /tree
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

# QEMU ends with (code << 1) | 1, so that an even status is never one of ours.
verdict() {
    echo "vm: exit code $1 after $(cut -d' ' -f1 /proc/uptime) s"
    [ "$1" -le 126 ] || set -- 126
    printf "\\x$(printf %02x "$1")" | dd of=/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
    poweroff -f
}
cannot() {
    echo "vm: cannot $1"
    verdict 125
}

grep -q vm.probe /proc/cmdline && verdict 0
for module in /modules/*; do
    insmod "$module" || cannot "load $module"
done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host || cannot "mount the host's tree"
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work tree /tree || cannot "lay a writable layer over it"
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
for folder in proc sys dev; do
    mount -o bind /$folder /tree/$folder
done
mount -t tmpfs run /tree/run
cp -r /vm /tree/run/vm
chroot /tree /bin/bash /run/vm/guest.sh
verdict $?
