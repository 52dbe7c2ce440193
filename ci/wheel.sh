#!/usr/bin/env bash
# Set up the factory in .venv and build, audit and prove the AArch64 wheel; arguments go to `armbuild wheel`.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_packages 'command -v git' git ca-certificates
environment
# The factory itself needs no compiled kernels on this machine.
python -m pip install --quiet --config-settings=wheel.cmake=false '.[build]'
exec armbuild wheel "$@"
