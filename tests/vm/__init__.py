"""Tests in a virtual machine with a kernel of Debian, which has all controllers of cgroup v2. `make
vm` runs them.

The files of the machine are those of this one, read only; what it writes goes to its memory. It has
no network.

`packages`  the kernel, and a shell for its first moments
`initramfs` the archive that the kernel unpacks
`boot`      qemu, from the first instruction to power-off
`inside`    the tests that run there
`test_vm`   boots, and reports what happened inside
"""
