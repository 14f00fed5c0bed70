#!/bin/sh
# Replace every running replica by a new one, one at a time. No request fails, because a new one is healthy before an
# old one gets SIGTERM. Run it in the folder of docker-compose.yml, after you have built the image or changed settings.
set -eu

compose=${COMPOSE:-docker compose}
old=$($compose ps --quiet cohort)
count=$(echo "$old" | grep -c .) || {
    echo "cohort: no replica runs; start them with: make up" >&2
    exit 1
}
for replica in $old; do
    echo "cohort: replacing $(echo "$replica" | cut -c 1-12)"
    $compose up --detach --wait --no-deps --no-recreate --scale cohort=$((count + 1)) cohort
    docker stop "$replica" >/dev/null
    docker rm "$replica" >/dev/null
done
