"""What a build back end needs to compile for AArch64 Linux on another machine."""
