# shellcheck shell=sh
# The product's own Python environment: found, made, kept current. Sourced by `up` and `scripts/install`.
#
# A bare machine may lack pip, ensurepip, uv or a new enough Python, and each of them fails in its own way. So the
# environment is made by the first way that works, a half-made one is removed before the next way is tried, and
# where nothing works the user gets the exact command that mends it. Nothing is fetched except through the
# package clients that the machine already has (uv, pip, apt).
#
# A stamp (`.venv/.gpupool`) is written last: with it in place nothing below runs again; without it an
# environment counts as half-made.
#
# The caller sets `root` (the checkout) and calls `prepare_environment up|all`.

venv=${root:?the checkout, set by the caller}/.venv
stamp=$venv/.gpupool
started=$(date +%s)
child=
spinner=
unfinished=
python=

set_up_home() {
    # State, logs and keys: GPUPOOL_HOME, beside the checkout unless the user says otherwise.
    GPUPOOL_HOME=${GPUPOOL_HOME:-$root/.gpupool}
    case $GPUPOOL_HOME in
    /*) ;;
    *) GPUPOOL_HOME=$PWD/$GPUPOOL_HOME ;;
    esac
    export GPUPOOL_HOME
    logs=$GPUPOOL_HOME/logs
    log=$logs/install.log
}

# --- Telling the user -------------------------------------------------------------------------------------

elapsed() {
    echo $(($(date +%s) - started))
}

say() {
    # To standard error, like all progress: standard output belongs to the product (`./up --once --json | ...`).
    printf '[%3d s] %s\n' "$(elapsed)" "$*" >&2
}

stop() {
    # stop WHAT REMEDY...: what happened, what to do next (one line each), exit status 3.
    printf '\nERROR: %s\n' "$1" >&2
    shift
    printf '  What to do: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '              %s\n' "$line" >&2; done
    exit 3
}

packages_in_place() {
    # Say what the installer has put there so far, and what it still does once all of it is there.
    set -- "$venv"/lib/python*/site-packages/*.dist-info
    [ -e "$1" ] || return 0
    if [ -f "$lock" ] && [ "$#" -ge "$(grep -c '==' "$lock")" ]; then
        echo ": all $# packages in place, compiling them"
    else
        echo ": $# packages in place"
    fi
}

spin() {
    # A line that moves on a terminal, a line every five seconds elsewhere, until killed or orphaned.
    beats=0
    while kill -0 "$$" 2>/dev/null; do
        if [ -t 2 ]; then
            case $((beats % 4)) in 0) mark='|' ;; 1) mark=/ ;; 2) mark=- ;; *) mark="\\" ;; esac
            printf '\r\033[K[%3d s] %s %s%s' "$(elapsed)" "$mark" "$1" "$(packages_in_place)" >&2
            sleep 0.2 >/dev/null 2>&1 || sleep 1
        else
            if [ $((beats % 5)) -eq 4 ]; then say "$1 ... still working$(packages_in_place)"; fi
            sleep 1 >/dev/null 2>&1
        fi
        beats=$((beats + 1))
    done
}

working() {
    # working LABEL COMMAND...: run it with its output in the log and progress on the screen.
    label=$1
    shift
    printf '\n== %s: %s\n' "$(date)" "$*" >>"$log"
    if [ ! -t 2 ]; then say "$label"; fi
    # A session of its own, so that an interrupt can end the command with all its children.
    if command -v setsid >/dev/null 2>&1; then
        setsid "$@" </dev/null >>"$log" 2>&1 &
    else
        "$@" </dev/null >>"$log" 2>&1 &
    fi
    child=$!
    spin "$label" 9>&- &
    spinner=$!
    status=0
    wait "$child" || status=$?
    child=
    end_spinner
    if [ -t 2 ]; then
        printf '\r\033[K' >&2
        say "$label"
    fi
    return "$status"
}

end_spinner() {
    if [ -n "$spinner" ]; then
        # SIGKILL: a forked shell loses any other signal that reaches it before it has put the traps aside.
        kill -KILL "$spinner" 2>/dev/null || true
        wait "$spinner" 2>/dev/null || true
        spinner=
    fi
}

end_child() {
    # Again and again, for the reason given in end_spinner, and by force after ten seconds.
    signals=0
    while [ -n "$child" ] && kill -0 "$child" 2>/dev/null; do
        if [ "$signals" -lt 50 ]; then signal=TERM; else signal=KILL; fi
        kill -"$signal" -- "-$child" 2>/dev/null || kill -"$signal" "$child" 2>/dev/null || true
        signals=$((signals + 1))
        sleep 0.2 >/dev/null 2>&1 || sleep 1
    done
    child=
}

clean_up() {
    status=$?
    trap - EXIT
    end_child
    end_spinner
    if [ -n "$unfinished" ]; then rm -rf "$venv"; fi
    exit "$status"
}

interrupted() {
    end_spinner
    printf '\nInterrupted: the half-made environment is removed. Run the command again to go on.\n' >&2
    exit "$1"
}

# --- Finding a Python -------------------------------------------------------------------------------------

fitting_python() {
    # Print the path behind a command when it is a CPython this product runs on.
    "$1" -c '
import sys
import sqlite3, ssl, venv
fits = (3, 11) <= sys.version_info[:2] < (3, 15) and sys.maxsize > 2**32 and sys.implementation.name == "cpython"
print(sys.executable) if fits else sys.exit(1)' 2>/dev/null
}

find_python() {
    for candidate in ${GPUPOOL_PYTHON:+"$GPUPOOL_PYTHON"} python3.13 python3.12 python3.11 python3 python3.14; do
        if command -v "$candidate" >/dev/null 2>&1 && python=$(fitting_python "$candidate"); then
            return 0
        fi
        if [ "$candidate" = "${GPUPOOL_PYTHON:-}" ]; then
            stop "GPUPOOL_PYTHON names $candidate, which is not a 64-bit CPython 3.11 to 3.14." \
                "Name another one, or unset GPUPOOL_PYTHON."
        fi
    done
    python=
    return 1
}

is_root_with_apt() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1
}

apt_install() {
    # apt_install PACKAGE...: as root, saying so.
    say "Installing with apt-get: $*"
    working "Reading the distribution's package lists" apt-get update || true
    working "Installing $*" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

distribution_python() {
    # The newest fitting Python that the distribution offers, by name.
    for version in 3.13 3.12 3.11; do
        if apt-cache show "python$version-venv" >/dev/null 2>&1; then
            echo "python$version"
            return 0
        fi
    done
    echo python3.11
}

obtain_python() {
    found=$(python3 --version 2>/dev/null || echo "no Python at all")
    if ! command -v apt-get >/dev/null 2>&1; then
        stop "gpupool needs Python 3.11 to 3.14; this machine has $found." \
            "Install one with this system's package manager, then run the same command again."
    fi
    say "This machine has $found; gpupool needs 3.11 or newer. The distribution's own newer package is used."
    if is_root_with_apt; then
        working "Reading the distribution's package lists" apt-get update || true
        offered=$(distribution_python)
        working "Installing $offered $offered-venv with apt-get" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "$offered" "$offered-venv" || true
        if find_python; then return 0; fi
    fi
    offered=$(distribution_python)
    stop "No fitting Python could be found or installed (log: $log)." \
        "Run this, then the same command again:" \
        "sudo apt-get update && sudo apt-get install -y $offered $offered-venv"
}

obtain_libraries() {
    # Two C libraries that wheels take for granted and a bare machine may lack: library, then its package.
    missing=
    for pair in libgomp.so.1:libgomp1 libstdc++.so.6:libstdc++6; do
        "$python" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "${pair%%:*}" 2>/dev/null ||
            missing="$missing ${pair#*:}"
    done
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086 # a list of words
    if is_root_with_apt && apt_install $missing; then return 0; fi
    stop "The system packages that the inference engine needs are not there:$missing." \
        "Run this, then the same command again:" "sudo apt-get update && sudo apt-get install -y$missing"
}

# --- Making the environment -------------------------------------------------------------------------------

discard() {
    if [ -e "$venv" ] || [ -L "$venv" ]; then
        rm -rf "$venv" || stop "The folder $venv cannot be removed." "Mend its rights or remove it by hand."
    fi
}

pip_install() {
    # pip_install PIP...: install the wanted lock with this pip.
    working "Installing packages" "$@" install --no-input --disable-pip-version-check --progress-bar off \
        --no-deps --require-hashes --only-binary=:all: --requirement "$lock"
}

with_uv() {
    command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1 || return 1
    working "Making the environment (uv)" uv venv --no-project --python "$python" "$venv" && uv_install
}

uv_install() {
    working "Installing packages" uv pip install --python "$venv/bin/python" --compile-bytecode \
        --no-deps --require-hashes --only-binary :all: --requirement "$lock"
}

with_venv() {
    working "Making the environment (venv)" "$python" -m venv "$venv" &&
        pip_install "$venv/bin/python" -m pip
}

with_system_pip() {
    "$python" -m pip --python "$python" --version >/dev/null 2>&1 || return 1
    working "Making the environment (the system's pip)" "$python" -m venv --without-pip "$venv" &&
        pip_install "$python" -m pip --python "$venv/bin/python"
}

venv_package() {
    "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

with_apt() {
    is_root_with_apt && ! "$python" -c 'import ensurepip; ensurepip.version()' 2>/dev/null || return 1
    apt_install "$(venv_package)" && with_venv
}

make_environment() {
    for way in with_uv with_venv with_system_pip with_apt; do
        discard
        unfinished=yes
        if "$way"; then return 0; fi
    done
    discard
    unfinished=
    if "$python" -c 'import ensurepip; ensurepip.version()' 2>/dev/null; then
        echo >&2
        tail -n 5 "$log" >&2
        stop "The packages could not be installed; the last lines of $log are above." \
            "Check that this machine reaches its Python package index and has free disk space, then run this again."
    fi
    stop "Python's venv module is not complete on this machine (log: $log)." \
        "Run this, then the same command again:" \
        "sudo apt-get update && sudo apt-get install -y $(venv_package)"
}

widen_environment() {
    # Bring a finished environment to another lock in place: programs that run from it go on running.
    rm -f "$stamp"
    if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1 && uv_install; then return 0; fi
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        pip_install "$venv/bin/python" -m pip
    else
        "$python" -m pip --python "$python" --version >/dev/null 2>&1 || return 1
        pip_install "$python" -m pip --python "$venv/bin/python"
    fi
}

finish_environment() {
    # The project itself: found through a .pth file, started by small launchers; nothing is built or fetched.
    working "Adding gpupool's commands" "$venv/bin/python" -I "$root/scripts/launchers.py" "$root" || return 1
    working "Compiling" "$venv/bin/python" -m compileall -q "$root/src" || return 1
    "$venv/bin/python" -P -c 'import gpupool' >>"$log" 2>&1
}

# --- Keeping it current -----------------------------------------------------------------------------------

fingerprint() {
    # fingerprint SET: what an environment of this set was, or would be, made from.
    printf '%s %s %s\n' "$1" "$(cat "$root/locks/$1.txt" "$root/pyproject.toml" "$root/scripts/launchers.py" |
        sha256sum | cut -d ' ' -f 1)" "$root"
}

is_current() {
    # is_current SET: finished, for this set or for all, from these very locks, in this very place.
    [ -f "$stamp" ] && [ -x "$venv/bin/python" ] || return 1
    { IFS= read -r made <"$stamp"; } 2>/dev/null || return 1
    case $made in
    all\ *) [ "$made" = "$(fingerprint all)" ] ;;
    *) [ "$made" = "$(fingerprint "$1")" ] ;;
    esac
}

prepare_environment() {
    # prepare_environment SET: make `.venv` hold locks/SET.txt, or do nothing where it does already.
    unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_ROOT
    export UV_PYTHON_DOWNLOADS=never PIP_USER=0
    if is_current "$1"; then return 0; fi
    # What is behind a link may be another checkout's environment, which is not ours to change.
    if [ -L "$venv" ]; then
        stop "$venv is a link to another environment, which this checkout does not change." \
            "Remove the link (rm $venv), then run this again: it makes an environment of its own."
    fi
    open_log
    command -v flock >/dev/null 2>&1 ||
        stop "The command flock is missing; gpupool runs on Linux." "Install the package util-linux, then run this again."
    # One at a time. Held through a descriptor that the installers inherit, so that it outlives a killed shell
    # for exactly as long as one of them still writes.
    exec 9>"$root/.venv.lock"
    if ! flock -n 9; then
        say "Another start is installing into $venv; waiting for it."
        flock 9
    fi
    if ! is_current "$1"; then install_environment "$1"; fi
    exec 9>&-
}

open_log() {
    (umask 077 && mkdir -p "$logs" && : >>"$log") 2>/dev/null && [ -w "$root" ] ||
        stop "The folders $GPUPOOL_HOME and $root must be writable." \
            "Mend their rights, or give another state folder with GPUPOOL_HOME."
    chmod 700 "$GPUPOOL_HOME" "$logs"
    chmod 600 "$log"
}

install_environment() {
    trap clean_up EXIT
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM HUP
    made_set=$1
    # An environment that once held everything goes on holding everything.
    if [ -f "$stamp" ] && grep -q '^all ' "$stamp"; then made_set=all; fi
    lock=$root/locks/$made_set.txt
    say "Installing gpupool into $venv (the installers write to $log)"
    if ! find_python; then obtain_python; fi
    say "Python: $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    obtain_libraries
    require_space
    if [ -f "$stamp" ] && [ -x "$venv/bin/python" ]; then
        widen_environment || make_environment
    else
        make_environment
    fi
    unfinished=yes
    finish_environment || stop "The installed environment does not work; the reason is in $log." \
        "Run the same command again; if it stays, report it with that log."
    fingerprint "$made_set" >"$stamp.new" && mv -f "$stamp.new" "$stamp"
    unfinished=
    say "Installed"
    trap - EXIT INT TERM HUP
}

require_space() {
    # The packages need 0.7 GB, twice that with what tests need; a full disk is better seen now.
    free=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "${free:-2000}" -lt 1000 ]; then
        stop "The disk of $root has $free MB free; the installation needs 1000 MB." "Free some space, then run this again."
    fi
}
