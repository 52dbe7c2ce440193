"""Build, audit and prove AArch64 wheels on any Linux machine."""
