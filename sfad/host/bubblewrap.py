"""Whether bubblewrap is there, and may make namespaces."""

import os
from pathlib import Path

_PLACES = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap")
"""No PATH is searched: a run's own could have another program of that name."""
FIX = "install the package bubblewrap (apt install bubblewrap, dnf install bubblewrap)"
_SYSCTLS = {
    # Debian's and Arch's kernels; Ubuntu from 23.10 on; all
    "kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1", "load the profile bwrap-userns-restrict, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
}  # fmt: skip


def bubblewrap() -> str | None:
    """Return the path of bubblewrap; `None` if it is not installed."""
    return next((path for path in _PLACES if os.access(path, os.X_OK)), None)


def namespaces_forbidden(uid: int) -> str | None:
    """Return why a user may not make user namespaces, and what to do; `None` if no setting of the kernel forbids it."""
    for name, (forbidding, fix) in _SYSCTLS.items():
        if uid == 0 and not name.startswith("user/"):
            continue
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == forbidding and not (name.startswith("kernel/apparmor") and _has_profile()):
            return f"the kernel forbids user namespaces ({name.replace('/', '.')} = {value}): {fix}"
    return None


def _has_profile() -> bool:
    return any(Path("/etc/apparmor.d", name).exists() for name in ("bwrap", "bwrap-userns-restrict"))
