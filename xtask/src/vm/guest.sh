# In a guest, on the host's tree: brings up one Soft-RoCE device and runs the command. Its streams are serial
# ports of their own; what this script says goes to the console.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
. /run/vm/settings

cannot() {
    echo "vm: cannot $1"
    exit 125
}

# rxe asks for crc32 by an alias which nothing here would resolve; later kernels have it built in.
modprobe -d "$VM_MODULES" -q crc32_generic
modprobe -d "$VM_MODULES" -a ib_uverbs rdma_ucm rdma_rxe veth virtio_net || cannot "load the modules"
ulimit -l unlimited
ip link set lo up
if [ -n "$VM_WIRE" ]; then
    host=$VM_WIRE
    netdev=$(basename "$(dirname "$(grep -ls 52:54:00 /sys/class/net/*/address)")")
else
    host=1
    netdev=veth0
    ip link add veth0 type veth peer name veth1 && ip link set veth1 up
fi
ip addr add "10.9.0.$host/24" dev "$netdev" && ip link set "$netdev" up || cannot "bring up $netdev"
rdma link add rxe0 type rxe netdev "$netdev" || cannot "make rxe0 over $netdev"

# Index 0 is the link-local GID; the address's own comes after it.
port=/sys/class/infiniband/rxe0/ports/1
for _ in $(seq 200); do
    grep -q ACTIVE $port/state && grep -qs 0a09:000 $port/gids/* && ready=yes && break
    sleep 0.1
done
[ -n "$ready" ] || cannot "wait longer for rxe0: state $(cat $port/state), GID $(cat $port/gids/1)"
echo "vm: rxe0 is up after $(cut -d' ' -f1 /proc/uptime) s, kernel $(uname -r)"

stty -F /dev/ttyS1 raw
stty -F /dev/ttyS2 raw
timeout --kill-after=10 "$VM_SECONDS" /bin/bash /run/vm/command </dev/null >/dev/ttyS1 2>/dev/ttyS2
