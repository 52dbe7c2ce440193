#!/usr/bin/env bash
# Set up everything the tests need and run them all; arguments go to nox (default: every session, see noxfile.py).
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_packages 'command -v git' git ca-certificates
need_packages 'command -v g++' g++
need_packages "${PYTHON:-python3} -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path(\"include\"), \"Python.h\").stat()'" python3-dev
need_packages 'command -v llvm-mc-19' llvm-19
need_packages 'command -v aarch64-linux-gnu-g++ && command -v aarch64-linux-gnu-gfortran' g++-aarch64-linux-gnu gfortran-aarch64-linux-gnu
need_packages 'command -v podman && command -v buildah' podman buildah runc # runc where crun may not set limits
need_packages 'docker info || command -v dockerd' docker.io
need_packages 'command -v docker' docker-cli
docker_builds_for_other_machines || need_packages false docker-buildx
need_packages 'command -v skopeo && command -v docker-registry && command -v umoci' skopeo docker-registry umoci
need_packages 'command -v containerd && command -v ctr' containerd
need_packages 'command -v mmdebstrap' mmdebstrap
need_packages 'command -v strace' strace
need_packages 'command -v bwrap' bubblewrap
need_packages 'command -v chromium || command -v google-chrome' chromium
aarch64_in_containers
environment
# torch for aarch64 is CPU-only on the Python index, for x86-64 it is not: set TORCH, or pip's own index options,
# to bring another CPU build.
python -m pip install --quiet "${TORCH:-torch==2.13.0}"
python -m pip install --quiet '.[dev]'
exec nox "$@"
