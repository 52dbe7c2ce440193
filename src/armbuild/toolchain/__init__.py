"""What a build back end needs to be told so that it compiles for AArch64 Linux on another machine."""
