#!/bin/sh
# boot.sh WORK NAME UNIFIED PATH...: a real systemd, from the files of this machine, until it is told to power off.
# To be called in a mount namespace of its own. The machine's root is read only to it (what it writes goes to memory and is gone
# afterwards); of other file systems it sees the PATHs. Exit code 77, and why on stderr: it cannot be done here.
# SFAD_TEST_ROOT: the root of another system (debootstrap) instead of this machine's, to try another systemd.
set -eu
work=$1 name=$2 unified=$3
shift 3
root=$work/root

cannot() { echo "$*" >&2; exit 77; }
mount -t tmpfs -o size=1G,mode=0755 tmpfs "$work" || cannot "no tmpfs can be mounted"
mkdir "$work/low" "$work/up" "$work/work" "$root"
mount --bind "${SFAD_TEST_ROOT:-/}" "$work/low" || cannot "nothing can be mounted"
mount -t overlay -o "lowerdir=$work/low,upperdir=$work/up,workdir=$work/work" overlay "$root" || cannot "no overlayfs can be mounted"

sh "${0%/*}/clean_root.sh" "$root"
cp -r "$work.files/." "$root/"

# a user of the booted system may go where the interpreter is
for path; do
    set -- "$@" "--bind-ro=$path"
    shift
    above=$path
    while above=$(dirname "$above") && [ "$above" != / ]; do
        mkdir -p "$root$above"
        chmod o+x "$root$above"
    done
done

for mount in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    if [ -e "$mount/cgroup.procs" ]; then
        mkdir "$mount/$name" && echo 0 >"$mount/$name/cgroup.procs" || cannot "no cgroup can be made in $mount"
    fi
done
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="$unified"
[ "$unified" = 1 ] || unset SYSTEMD_NSPAWN_UNIFIED_HIERARCHY
exec systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --private-network --console=pipe --link-journal=no \
    --machine="$name" "$@"
