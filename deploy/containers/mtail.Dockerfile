# mtail, which has no official image, on the base that Cohort is built on.
ARG BASE_IMAGE=python:3.11-slim

# Who builds names the tag.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends mtail && rm -rf /var/lib/apt/lists/*
USER 101:101
EXPOSE 8404
ENTRYPOINT ["mtail"]
