#!/usr/bin/env bash
# Runs README's `make demo` and `make test` in fresh clones of this checkout's HEAD: as root and as an ordinary user, in several
# places, with what a parent may leave to a process.
#
#   tests/fresh.sh                     each cell of the table (tests/fresh.sh --list)
#   tests/fresh.sh CELL…               these cells; a cell is any traits joined by +, such as user+home+closed
#   tests/fresh.sh --sample            what CI runs
#   tests/fresh.sh --only 'WORDS' …    instead of `make test`, pytest with these words, such as 'tests/cli -k limits'
#   tests/fresh.sh --logs DIR …        keep what the cells print
#
# Needs git, make and Python 3.11 with its venv module. As root it makes an ordinary user for some cells, and removes it.
set -uo pipefail

TRAITS="\
root        the superuser
user        an ordinary user: a new one, or whoever runs this without being root
tmp         the clone is below /tmp
home        the clone is in the user's home
umlaut      the clone's path has a space and umlauts
nohome      HOME is unset
readonly    HOME cannot be written: it is root's, mode 555
settings    HOME has settings of agent programs, of git and of sfad, none of which is valid
variables   the environment has keys, addresses, a proxy, and variables of sfad, of git and of XDG
langc       LANG=C
ascii       a locale without UTF-8, and Python is told to obey it
ignored     the parent ignores SIGCHLD, SIGHUP and SIGPIPE
blocked     the parent blocks signals
terminal    stdin is a terminal
closed      stdin is closed
pipe        stdin is a pipe
umask000    files are open to all unless a program says otherwise
umask077    files are closed to others
few         256 descriptors, if it does not ask for more
onecore     one processor"

CELLS="\
root+tmp+terminal+umask000
root+umlaut+ignored+blocked+pipe
root+home+ascii+closed
user+home+langc+umask077+pipe
user+umlaut+readonly+few+closed
user+tmp+nohome+onecore+ignored
user+home+settings+variables+ascii"

SAMPLE="\
root+umlaut+ignored+blocked+pipe
user+home+langc+umask077+pipe"

MINUTES=${MINUTES:-12} # of a cell on two cores

list() {
    printf 'cells (those of --sample with a star):\n'
    for cell in $CELLS; do
        case " ${SAMPLE//$'\n'/ } " in *" $cell "*) star='*' ;; *) star=' ' ;; esac
        printf ' %s %s\n' "$star" "$cell"
    done
    printf '\ntraits:\n%s\n' "$(sed 's/^/   /' <<<"$TRAITS")"
}

fail() {
    echo "fresh.sh: $1" >&2
    exit 2
}

only='' cells='' logs=''
while [ $# -gt 0 ]; do
    case $1 in
    --list) list && exit ;;
    --sample) cells=$SAMPLE ;;
    --only) only=${2:?"--only needs words for pytest"} && shift ;;
    --logs) logs=$(mkdir -p "${2:?"--logs needs a directory"}" && cd "$2" && pwd) && shift ;;
    -*) fail "unknown option $1; see the head of tests/fresh.sh" ;;
    *) cells="$cells $1" ;;
    esac
    shift
done
cells=${cells:-$CELLS}
for trait in ${cells//+/ }; do
    grep -q "^$trait " <<<"$TRAITS" || fail "unknown trait '$trait'; tests/fresh.sh --list shows them"
done

checkout=$(cd "$(dirname "$0")/.." && pwd)
[ -z "$(git -C "$checkout" status --porcelain)" ] || echo "note: a clone of HEAD is tested; $checkout has changes that are not in it"
work=$(mktemp -d /tmp/fresh.XXXXXX) && chmod 755 "$work"
logs=${logs:-$work}
other='' # the user that this script has made

clean_up() {
    if [ -n "$other" ]; then
        for process in $(find /proc -maxdepth 1 -name '[0-9]*' -user "$other"); do kill -KILL "${process#/proc/}" 2>/dev/null; done
        userdel --remove "$other" 2>/dev/null
        rm -rf "/tmp/pytest-of-$other"
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# ---- Who runs a cell, and why that is impossible here

make_user() {
    [ -n "$other" ] && return
    other=fresh$$
    useradd --create-home --shell /bin/sh "$other" 2>"$work/useradd" || { other='' && return 1; }
    mkdir "$work/packages" && chown "$other:" "$work/packages"
}

has() { case "+$1+" in *"+$2+"*) ;; *) return 1 ;; esac }

impossible() { # CELL: sets `why` if it cannot run here
    why=''
    if has "$1" root && [ "$(id -u)" != 0 ]; then
        why="takes root"
    elif has "$1" readonly && [ "$(id -u)" != 0 ]; then
        why="takes root, to make a home that is root's"
    elif has "$1" terminal && ! command -v script >/dev/null; then
        why="takes script (Debian: bsdutils)"
    elif has "$1" onecore && ! command -v taskset >/dev/null; then
        why="takes taskset (Debian: util-linux)"
    elif has "$1" user && [ "$(id -u)" = 0 ]; then
        if ! command -v useradd >/dev/null || ! command -v setpriv >/dev/null; then
            why="takes useradd and setpriv (Debian: passwd util-linux)"
        elif ! make_user; then
            why="no user can be made: $(tail -n 1 "$work/useradd")"
        elif ! as_other sh -c "$PYTHON_FITS" 2>/dev/null; then
            why="no Python 3.11 with venv in an ordinary user's $SYSTEM_PATH"
        fi
    fi
    [ -n "$why" ]
}

SYSTEM_PATH=/usr/local/bin:/usr/bin:/bin
PYTHON_FITS='python3 -c "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"'

as_other() { setpriv --reuid="$other" --regid="$(id -g "$other")" --init-groups env -i PATH=$SYSTEM_PATH "$@"; }

# ---- A cell: a clone, an environment, and what a process inherits

run_cell() { # CELL DIRECTORY: returns the exit code of the two commands
    local cell=$1 directory=$2 who home place
    who=$(id -un) home=$directory/home
    has "$cell" user && [ -n "$other" ] && who=$other home=$(eval echo "~$other")
    mkdir -p "$home"
    place=$directory/sfad
    has "$cell" home && place=$home/sfad
    has "$cell" umlaut && place="$directory/Größe und Übung/sfad"
    git clone --quiet --no-hardlinks "$checkout" "$place" || return
    [ "$who" = "$(id -un)" ] || chown -R "$who:" "$directory" "$place"
    has "$cell" settings && settings "$home" && chown -R "$who:" "$home"
    has "$cell" readonly && home=$directory/readonly && mkdir "$home" && chmod 555 "$home" && chown root: "$home"
    before "$cell" "$place" >"$directory/before"
    within "$cell" >"$directory/within"
    local env=("HOME=$home" "USER=$who" "LOGNAME=$who" SHELL=/bin/sh TERM=xterm LANG=C.UTF-8 "PIP_CACHE_DIR=$(packages "$who")")
    has "$cell" nohome && env=("${env[@]:1}")
    has "$cell" langc && env+=(LANG=C)
    has "$cell" ascii && env+=(LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0)
    while IFS= read -r variable; do env+=("$variable"); done < <(env | grep -iE '^(pip_[a-z_]*|ssl_cert_[a-z]*|https?_proxy|no_proxy)=')
    if [ "$who" = "$(id -un)" ]; then
        env -i "PATH=$PATH" "${env[@]}" sh "$directory/before" "$directory/within"
    else
        as_other "${env[@]}" sh "$directory/before" "$directory/within"
    fi
    local code=$?
    has "$cell" readonly && chmod 755 "$home"
    rm -rf "$directory"
    [ -z "$other" ] || find "$(eval echo "~$other")" -mindepth 1 -delete
    return $code
}

packages() { # USER: prints where pip keeps what it has fetched, so that it fetches nothing for the next cell
    [ "$1" = "$other" ] && echo "$work/packages" || echo "${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}"
}

before() { # CELL PLACE: prints a script that brings about what its argument, a script, inherits
    printf 'cd "%s" || exit\n' "$2"
    # here nothing answers at the address of the proxy, so what needs the network comes first
    has "$1" variables && printf 'make .venv/.tests || exit\n%s\n' "$VARIABLES"
    has "$1" umask000 && echo 'umask 000'
    has "$1" umask077 && echo 'umask 077'
    has "$1" few && echo 'ulimit -S -n 256'
    has "$1" closed && echo 'exec <&-'
    if has "$1" terminal; then
        echo 'exec script --quiet --return --command "sh $1" /dev/null'
    elif has "$1" pipe; then
        echo ': | sh "$1"'
    else
        echo 'exec sh "$1"'
    fi
}

within() { # CELL: prints the script of the two commands
    local words=''
    has "$1" onecore && words="taskset --cpu-list $(taskset --cpu-list --pid $$ | grep -o '[0-9]*' | sed -n 2p)"
    has "$1" blocked && words="$words python3 -c '$BLOCK'"
    has "$1" ignored && echo "trap '' CHLD HUP PIPE"
    if [ -n "$only" ]; then
        echo "$words make demo .venv/.tests && $words .venv/bin/python -m tests.suite --tier fast $only"
    else
        echo "$words make demo && $words make test"
    fi
}

BLOCK='import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])'

VARIABLES="\
export ANTHROPIC_API_KEY=none ANTHROPIC_BASE_URL=http://127.0.0.1:9 ANTHROPIC_MODEL=none OPENAI_API_KEY=none
export OPENAI_BASE_URL=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9
export SFAD_SOCKET=/nonexistent/s SFAD_STATE_DIR=/nonexistent SFAD_CONFIG=/nonexistent.toml SFAD_AUTOSTART=0
export GIT_DIR=/nonexistent GIT_AUTHOR_NAME=none GIT_CONFIG_GLOBAL=/nonexistent
export XDG_CONFIG_HOME=/nonexistent XDG_STATE_HOME=/nonexistent XDG_DATA_HOME=/nonexistent XDG_RUNTIME_DIR=/nonexistent"

settings() { # HOME
    local name
    for name in .claude/settings.json .codex/config.toml .gemini/settings.json .qwen/settings.json .config/opencode/opencode.json \
        .aider.conf.yml .gitconfig .config/sfad/sfad.toml; do
        mkdir -p "$(dirname "$1/$name")" && echo '<none of these is valid>' >"$1/$name"
    done
}

# ---- The table

count=$(wc -w <<<"$cells")
[ -n "$only" ] || echo "$count cells; $((count * MINUTES)) minutes on two idle cores"
began=$SECONDS red=0 number=0
printf '%-42s %-8s %8s\n' cell result seconds
for cell in $cells; do
    number=$((number + 1))
    printf '%-42s ' "$cell"
    if impossible "$cell"; then
        printf '%-8s %8s %s\n' skipped - "$why"
        continue
    fi
    directory=$work/$number log=$logs/$cell.log start=$SECONDS
    mkdir "$directory"
    if run_cell "$cell" "$directory" >"$log" 2>&1; then result=green; else result=RED red=1; fi
    printf '%-8s %8s\n' $result $((SECONDS - start))
    [ $result = green ] || { grep -aE '^(FAILED|ERROR) ' "$log" || tail -n 30 "$log"; } | sed 's/^/    /'
done
echo "$((SECONDS - began)) seconds in all"
exit $red
