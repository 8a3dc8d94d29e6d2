#!/usr/bin/env bash
# Runs a command where nothing of RDMA is to be had: no rdma-core headers or libraries, no libclang, no cmake, no
# pkg-config, and, unless --with-cc is given, no C compiler but what links. What is installed is hidden from this
# command alone, in a mount namespace; what is not installed needs no hiding.
#
#   xtask/scripts/bare.sh [--with-cc] COMMAND [ARGUMENT]...
set -euo pipefail

with_cc=no
if [ "${1-}" = --with-cc ]; then
    with_cc=yes
    shift
fi
[ $# -gt 0 ] || { echo "usage: bare.sh [--with-cc] COMMAND [ARGUMENT]..." >&2; exit 2; }

if [ "${IBV_BARE_INSIDE-}" != yes ]; then
    flags=(--mount)
    [ "$(id -u)" = 0 ] || flags+=(--map-root-user)
    arguments=("$@")
    [ "$with_cc" = no ] || arguments=(--with-cc "$@")
    IBV_BARE_INSIDE=yes exec unshare "${flags[@]}" bash "$0" "${arguments[@]}"
fi

mount --make-rprivate /
scratch=$(mktemp -d)
mount -t tmpfs bare "$scratch"

# Shows a folder without the entries that match the patterns: links to the rest of it are laid over it.
hide() {
    local folder=$1 pattern hidden
    shift
    [ -d "$folder" ] && [ ! -L "$folder" ] || return 0
    hidden=no
    for pattern in "$@"; do
        if compgen -G "$folder/$pattern" >/dev/null; then hidden=yes; fi
    done
    [ $hidden = yes ] || return 0
    local name=${folder//\//_}
    mkdir -p "$scratch/all/$name" "$scratch/rest/$name"
    mount --rbind "$folder" "$scratch/all/$name"
    (
        cd "$scratch/all/$name"
        find . -mindepth 1 -maxdepth 1 -printf '%P\0' | xargs -0 -I{} ln -s "$scratch/all/$name/{}" "$scratch/rest/$name/{}"
        cd "$scratch/rest/$name"
        for pattern in "$@"; do rm -f -- $pattern; done
    )
    mount --bind "$scratch/rest/$name" "$folder"
}

# Empties folders.
empty() {
    local folder
    for folder in "$@"; do
        [ ! -d "$folder" ] || mount -t tmpfs -o size=4k bare "$folder"
    done
}

# Makes programs that can not be run. Not links to the rest of the folder, as above: a compiler finds its own
# parts from where it lies.
disable() {
    local file
    for file in "$@"; do
        [ ! -f "$file" ] || mount --bind /dev/null "$(readlink -f "$file")"
    done
}

libraries=('libibverbs*' 'libmlx[45]*' 'libefa*' 'libmana*' 'librdmacm*' 'libclang*' 'libhns*' 'libionic*')
for folder in /usr/lib/*-linux-gnu /usr/lib64 /usr/local/lib /usr/local/lib/*-linux-gnu; do
    hide "$folder" "${libraries[@]}"
done
empty /usr/lib/llvm-* /usr/include/infiniband /usr/include/rdma /usr/local/include/infiniband /usr/local/include/rdma
for bin in /usr/bin /usr/local/bin; do
    disable $bin/cmake $bin/ctest $bin/pkg-config $bin/pkgconf $bin/*-pkg-config $bin/clang* $bin/llvm-config* $bin/bindgen
done
unset LIBCLANG_PATH LLVM_CONFIG_PATH PKG_CONFIG PKG_CONFIG_PATH LD_LIBRARY_PATH CC CXX CFLAGS CPATH C_INCLUDE_PATH
unset IBV_LIBIBVERBS IBV_LIBMLX5 IBV_LIBEFA

if [ $with_cc = no ]; then
    # rustc links through cc; a compiler that only links is what this leaves.
    mkdir "$scratch/bin"
    for name in cc gcc c++ g++ clang clang++ c99 c89; do
        real=$(command -v "$name" || true)
        [ -n "$real" ] || continue
        cat >"$scratch/bin/$name" <<WRAPPER
#!/bin/sh
for argument in "\$@"; do
    case "\$argument" in
    -c | -E | -S | *.c | *.cc | *.cpp | *.S) echo "$name: there is no C compiler here, only a linker" >&2; exit 1 ;;
    esac
done
exec $real "\$@"
WRAPPER
        chmod +x "$scratch/bin/$name"
    done
    export PATH="$scratch/bin:$PATH"
fi

for path in /usr/include/infiniband/verbs.h /usr/lib/*-linux-gnu/libibverbs.so* /usr/lib/*-linux-gnu/libclang* \
    /usr/lib/llvm-*/lib/libclang*; do
    [ ! -e "$path" ] || { echo "bare.sh: $path is still there" >&2; exit 1; }
done
for program in cmake pkg-config clang; do
    if [ -x "$(command -v "$program")" ]; then echo "bare.sh: $program can still be run" >&2; exit 1; fi
done
exec "$@"
