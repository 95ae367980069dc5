#!/bin/sh
# Resolve every dependency once, then cut the two smaller sets out of that one resolution.
#
# The lock files name releases and hashes and nothing of where they came from, so that they install from any
# mirror. `uv` is needed here only, and only by whoever changes a dependency.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd "$root"

if ! command -v uv >/dev/null 2>&1; then
    echo "make lock needs uv: install it (pip install uv), then run this again." >&2
    exit 3
fi

# Wheels that happen to lie on this machine must not decide what everybody installs.
unset PIP_FIND_LINKS UV_FIND_LINKS

resolve() {
    output=$1
    shift
    # What is pinned stays pinned unless --upgrade or a changed requirement says otherwise.
    [ ! -f "$output" ] || cp "$output" "$output.new"
    uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --only-binary :all: \
        --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --output-file "$output.new" "$@" pyproject.toml >/dev/null
    unhang "$output.new"
    mv -f "$output.new" "$output"
    echo "$output: $(grep -c '==' "$output") releases"
}

unhang() {
    # No pin may hang on a Python version: Ubuntu 22.04 calls its Python 3.11.0rc1, and pip counts a release
    # candidate as neither below nor above 3.12.
    hanging="python_full_version < '3\.1[0-9](\.[0-9]+)?'"
    sed -i -E -e "s/ ; $hanging and / ; /" -e "s/ ; $hanging//" "$1"
}

resolve_peer() {
    # One release of a peer's programs, for the tests that meet it (scripts/peer_env.sh). A few parts are source only.
    output=locks/$1.txt requirement=$2
    shift 2
    [ ! -f "$output" ] || cp "$output" "$output.new"
    echo "$requirement" | uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --output-file "$output.new" "$@" - >/dev/null
    unhang "$output.new"
    mv -f "$output.new" "$output"
    echo "$output: $(grep -c '==' "$output") releases"
}

mkdir -p locks
scratch=$(mktemp -d)
trap 'rm -rf locks/*.new "$scratch"' EXIT
resolve locks/all.txt --all-extras --group dev "$@"
resolve locks/base.txt --constraint locks/all.txt
resolve locks/up.txt --extra recompute --extra demo --constraint locks/all.txt
resolve_peer chia chia-blockchain==2.7.5 "$@"
resolve_peer chutes chutes-miner-cli==0.1.0 "$@"
resolve_peer validator "$(cat tests/validator_case/requirements.txt)" "$@"

for version in 3.11 3.12 3.13 3.14; do
    for lock in base up all; do
        uv pip install --quiet --dry-run --no-deps --require-hashes --only-binary :all: --target "$scratch" \
            --python-version "$version" --python-platform x86_64-unknown-linux-gnu -r "locks/$lock.txt"
    done
    echo "wheels for every release on Python $version"
done
