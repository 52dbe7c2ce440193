"""Build, audit and test AArch64 wheels on any Linux machine."""
