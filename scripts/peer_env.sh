#!/bin/sh
# Make `.venv-chia`, `.venv-chutes` or `.venv-validator`: a peer's own programs (stock chia-blockchain; chutes-miner-cli;
# what the code of Chutes' validator imports) in an environment of its own, for the tests that meet the real thing.
# `scripts/peer_env.sh chia` prints its folder.
#
# Their releases of shared libraries (chia_rs above all) are not ours, so they can never live in `.venv`. Made the first
# time that a test asks (`tests/peer_env.py`), kept until its lock changes, removed by `make clean`.
set -eu

peer=${1:?which peer: chia, chutes or validator}

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/.venv-$peer
lock=$root/locks/$peer.txt
stamp=$venv/.made-from
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_ROOT PIP_FIND_LINKS UV_FIND_LINKS
export UV_PYTHON_DOWNLOADS=never PIP_USER=0

fingerprint() {
    printf '%s %s\n' "$(cat "$lock" "$0" | sha256sum | cut -d ' ' -f 1)" "$root"
}

is_current() {
    [ -f "$stamp" ] && [ -x "$venv/bin/python" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]
}

fitting_python() {
    # The extensions that the peers need have wheels for these.
    for candidate in "$root/.venv/bin/python" python3.12 python3.11 python3.13 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "The tests with programs of others need Python 3.11 to 3.13 (apt-get install python3.11-venv)." >&2
    return 3
}

install() {
    # A few small packages are published as source only, so building is allowed here.
    if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
        uv venv --quiet --no-project --python "$1" "$venv" &&
            uv pip install --quiet --python "$venv/bin/python" --compile-bytecode \
                --no-deps --require-hashes --requirement "$lock"
    else
        "$1" -m venv "$venv" &&
            "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
                --no-deps --require-hashes --requirement "$lock"
    fi
}

# One maker at a time: several test workers may ask at once.
exec 9>"$venv.lock"
flock 9
if ! is_current; then
    python=$(fitting_python)
    rm -rf "$venv"
    install "$python" >&2
    fingerprint >"$stamp.new"
    mv -f "$stamp.new" "$stamp"
fi
echo "$venv"
