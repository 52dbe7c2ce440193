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

# environment: make .venv once and enter it; $PYTHON chooses the interpreter (3.10 or later).
environment() {
    local python=${PYTHON:-python3}
    need_packages "$python -c 'import ensurepip, sys; assert sys.version_info >= (3, 10)'" python3 python3-venv
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # shellcheck disable=SC1091
    . .venv/bin/activate
    export PIP_DISABLE_PIP_VERSION_CHECK=1
}
