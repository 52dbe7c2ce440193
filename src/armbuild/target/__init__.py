"""The AArch64 side of a build: Debian packages, QEMU, a root folder, headers, Python packages."""
