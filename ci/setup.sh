# Sourced by the scripts beside it: a virtual environment in .venv, and the Debian packages a step needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# need_packages TEST PACKAGE...: unless TEST succeeds, install PACKAGEs as root, or name the command that does.
need_packages() {
    local test=$1
    shift
    if bash -c "$test" >/dev/null 2>&1; then return; fi
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "+ apt-get install $*" >&2
        apt-get -qq update >&2
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >&2
    elif command -v apt-get >/dev/null; then
        echo "error: packages are missing; install them with: sudo apt-get install $*" >&2
        exit 3
    else
        echo "error: missing on this machine (names of Debian's packages): $*" >&2
        exit 3
    fi
}

# docker_builds_for_other_machines: whether a docker client here has BuildKit: inside version 20, since then as buildx.
docker_builds_for_other_machines() {
    local client
    for client in $(type -aP docker); do
        if "$client" buildx version || [[ $("$client" --version) == *"version 20."* ]]; then return; fi
    done >/dev/null 2>&1
    return 1
}

# aarch64_in_containers: let this machine's containers run AArch64 programs (binfmt_misc, with QEMU), as root only.
aarch64_in_containers() {
    local folder=/proc/sys/fs/binfmt_misc
    if [ "$(uname -m)" = aarch64 ] || grep -qs '^enabled' "$folder/qemu-aarch64"; then return; fi
    if [ "$(id -u)" != 0 ]; then
        echo "note: no AArch64 containers: sudo apt-get install podman qemu-user-static binfmt-support" >&2
        return
    fi
    need_packages 'test -e /usr/lib/binfmt.d/qemu-aarch64.conf' qemu-user-static
    if [ -e "$folder/register" ] || mount -t binfmt_misc binfmt_misc "$folder"; then
        grep -qs '^enabled' "$folder/qemu-aarch64" || cat /usr/lib/binfmt.d/qemu-aarch64.conf >"$folder/register"
    fi || echo "note: no AArch64 containers: binfmt_misc cannot be set up here" >&2
}

# environment: make .venv once and enter it; $PYTHON chooses the interpreter (3.10 or later).
environment() {
    local python=${PYTHON:-python3}
    need_packages "$python -c 'import ensurepip, sys; assert sys.version_info >= (3, 10)'" python3 python3-venv
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # shellcheck disable=SC1091
    . .venv/bin/activate
    export PIP_DISABLE_PIP_VERSION_CHECK=1
}
