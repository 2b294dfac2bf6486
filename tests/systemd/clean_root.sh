#!/bin/sh
# clean_root.sh ROOT: make the files of this machine those of a fresh one with systemd: none of its services, and no network.
set -eu
root=$1
rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/sfad* "$root"/etc/systemd/user/sfad* "$root"/etc/sfad \
    "$root"/var/lib/sfad "$root"/var/log/journal "$root"/run/*
mkdir -p "$root/etc/systemd/system" "$root/etc/systemd/user"
for unit in getty.target console-getty.service systemd-networkd.service systemd-resolved.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
: >"$root/etc/machine-id"
