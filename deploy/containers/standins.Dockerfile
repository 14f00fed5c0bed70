# Debian's programs in the place of the official images, which no registry has to be asked for.
# `make containers` builds each target; nobody deploys them.
ARG BASE_IMAGE=python:3.11-slim

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS monitoring
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus prometheus-alertmanager \
    && rm -rf /var/lib/apt/lists/*

FROM monitoring AS prometheus
RUN install --directory --owner 65534 --group 65534 /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]

FROM monitoring AS alertmanager
RUN install --directory --owner 65534 --group 65534 /alertmanager
USER 65534:65534
ENTRYPOINT ["prometheus-alertmanager"]

# Grafana has no package: a web server answers its health check, so that the rest of the stack comes up
# as it would. It shows nothing, and proves nothing about Grafana.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS grafana
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends curl && rm -rf /var/lib/apt/lists/* \
    && mkdir --parents /srv/api && echo '{"database": "none", "version": "stand-in"}' >/srv/api/health \
    && install --directory --owner 472 --group 0 /var/lib/grafana
USER 472:0
WORKDIR /srv
ENTRYPOINT ["python3", "-m", "http.server", "3000", "--directory", "/srv"]
