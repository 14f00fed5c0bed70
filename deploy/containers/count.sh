#!/bin/sh
# Count nginx's answers for Prometheus, at port 8404, and keep its log small, because it is in memory. Emptying the log
# may lose the last quarter of a second, which mtail has not read yet.
# Run by docker-compose.yml: count.sh LOG PROGRAM
set -eu
log=$1 limit=4000000
mtail --progs "$2" --logs "$log" --port 8404 --logtostderr &
mtail=$!
trap 'kill "$mtail"' TERM INT
while sleep 10; do
    [ "$(stat --format %s "$log" 2>/dev/null || echo 0)" -le "$limit" ] || : >"$log"
done &
wait "$mtail"
