#!/bin/sh
# Count what nginx answered, for Prometheus at port 8404, and keep the log that says so small: it lies in memory. To empty it
# may lose what mtail has not read yet, a quarter of a second.
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
