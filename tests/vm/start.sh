#!/bin/sh
# start.sh CLONE MODULES COMMAND...: the machine's first process. It becomes systemd, which runs COMMAND and ends the machine.
set -eu
clone=$1 modules=$2
shift 2
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
sh "$clone/tests/systemd/clean_root.sh" ""
# users of the machine may go where the interpreter is
for path in "$clone" "$(readlink -f "$clone/.venv/bin/python")"; do
    while path=$(dirname "$path") && [ "$path" != / ]; do chmod o+x "$path"; done
done
ln -sf /dev/null /etc/tmpfiles.d/tmp.conf  # it would empty /tmp, where the clone may be
mkdir -p /lib/modules
ln -sfn "$modules" "/lib/modules/$(uname -r)"
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udev-settle.service tmp.mount serial-getty@ttyS0.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sf ../inside.service /etc/systemd/system/multi-user.target.wants/
printf '%s\n' "$*" >/inside.sh
cat >/etc/systemd/system/inside.service <<'END'
[Unit]
After=basic.target dbus.service systemd-logind.service
[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
WorkingDirectory=/
ExecStart=-/bin/sh /inside.sh
ExecStopPost=/bin/sh -c 'echo "inside: $EXIT_STATUS"'
ExecStopPost=/bin/systemctl poweroff --force --force
END
exec /lib/systemd/systemd
