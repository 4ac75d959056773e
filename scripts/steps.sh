# scripts/steps.sh: how the scripts talk. Sourced by them; work goes through `step`, whose output is kept in one log.
#
#   heading "Build"            a line above steps
#   step "Compile" ninja ...   runs it: one line with the time; on failure the end of its output, and exit
#   try_step ...               the same, but returns the status instead of ending the script
#   note "..."                 a line below a step
#   die "..." "..."            the last words, one line each, and exit 1
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$root/.venv
python=$venv/bin/python
build=${SHARDWISE_BUILD:-$root/build}
cores=$(env -u OMP_NUM_THREADS nproc)  # that variable, of which nproc takes notice, is for one process

# A script started by another one goes on in the same log.
if [ -z "${SHARDWISE_LOG:-}" ]; then
  mkdir -p "$build/logs"
  export SHARDWISE_LOG=$build/logs/$(basename "$0").log
  : >"$SHARDWISE_LOG"
fi

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'; else bold='' dim='' red='' green='' plain=''; fi

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
note() { printf '    %s%s%s\n' "$dim" "$*" "$plain"; }
die() {
  printf '\n%s%s%s\n' "$red" "$1" "$plain" >&2
  shift
  [ $# -eq 0 ] || printf '%s\n' "$@" >&2
  exit 1
}

# What the step says of its progress: ninja's status in brackets ("41 of 97 files, 02:10 left"), else the last line of its output.
_progress() {
  local last
  last=$(tail -n 1 "$SHARDWISE_LOG" | tr -cd '[:print:]')
  if [[ $last =~ ^\[([0-9]+\ of\ [^]]+)\] ]]; then last=${BASH_REMATCH[1]}; fi
  printf '%s' "${last:0:60}"
}

# On a terminal the step's line is renewed once a second; elsewhere (a log of CI) a line is written every minute.
_watch() {
  local title=$1 passed
  for ((passed = 0; ; ++passed)); do
    if [ -t 1 ]; then
      printf '\r\e[K  … %-44s %4d s  %s%s%s' "$title" $passed "$dim" "$(_progress)" "$plain"
    elif [ $((passed % 60)) -eq 59 ]; then
      printf '  … %-44s %4d s  %s\n' "$title" $((passed + 1)) "$(_progress)"
    fi
    sleep 1
  done
}

try_step() {
  local title=$1 began status=0 pid watcher first_line elapsed
  shift
  printf '\n==> %s\n    %s\n' "$title" "$*" >>"$SHARDWISE_LOG"
  first_line=$(wc -l <"$SHARDWISE_LOG")
  began=$(date +%s%N)
  "$@" >>"$SHARDWISE_LOG" 2>&1 </dev/null &
  pid=$!
  trap 'kill "$pid" "$watcher" 2>/dev/null' INT TERM
  _watch "$title" &
  watcher=$!
  disown $watcher
  wait "$pid" || status=$?
  kill $watcher
  [ ! -t 1 ] || printf '\r\e[K'
  trap - INT TERM
  elapsed=$((($(date +%s%N) - began) / 100000000))
  local mark=${green}✓${plain}
  [ $status -eq 0 ] || mark=${red}✗${plain}
  printf '  %s %-44s %4d.%d s\n' "$mark" "$title" $((elapsed / 10)) $((elapsed % 10))
  if [ $status -ne 0 ]; then
    tail -n "+$((first_line + 1))" "$SHARDWISE_LOG" | tail -n "${SHARDWISE_TAIL:-30}" | sed 's/^/    | /'
    note "all of it: $SHARDWISE_LOG"
  fi
  return $status
}

step() {
  local title=$1
  try_step "$@" || die "$title failed."
}
