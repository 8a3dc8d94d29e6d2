#!/bin/sh
# Prints the safe handle's own share in instructions, one line a number: `post static 17.1`.
# Needs cargo and valgrind. Arguments go to cargo, such as `--features recorder`.
set -eu
rounds=1000
package=$(dirname "$0")/..
bin=$(cargo build -q --release --manifest-path "$package/Cargo.toml" --example cost --message-format=json "$@" |
    sed -n 's/.*"executable":"\([^"]*\/cost\)".*/\1/p')
[ -x "$bin" ] || { echo "cost.sh: no executable was built" >&2; exit 1; }
count() { # part, kind
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="cost::op_$1*" \
        "$bin" "$2" "$rounds" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
for part in post poll; do
    floor=$(count "$part" floor)
    echo "$part floor $(awk "BEGIN { printf \"%.1f\", $floor / $rounds / 16 }")"
    for kind in static dyn; do
        n=$(count "$part" "$kind")
        echo "$part $kind $(awk "BEGIN { printf \"%.1f\", ($n - $floor) / $rounds / 16 }")"
    done
done
