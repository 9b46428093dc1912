#!/bin/sh
# quietly.sh LOG TITLE COMMAND...: a step of the Makefile in one line. What the command says goes into LOG, from
# the start of it; the end of that is shown if the command fails.
log=$1 title=$2
shift 2
mkdir -p "$(dirname "$log")"
printf '%s ... ' "$title"
started=$(date +%s)
"$@" >"$log" 2>&1 </dev/null
status=$?
if [ "$status" -ne 0 ]; then
    echo "failed"
    {
        tail -n 12 "$log" | sed 's/^/  /'
        echo "error: $title: \`$*\` ended with status $status"
        echo "hint: its last lines are above, all of them in $log"
    } >&2
    exit "$status"
fi
echo "$(($(date +%s) - started)) s"
