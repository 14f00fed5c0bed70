# Cohort in a container. Needs BuildKit (Docker 20.10 or newer with DOCKER_BUILDKIT=1, the default since 23).
#
#   docker build --tag cohort:gpu .
#   docker build --tag cohort:cpu --build-arg RUNTIME=cpu .
#
#   RUNTIME     gpu: ONNX Runtime for CUDA with CUDA 13 and cuDNN 9 beside it; cpu: the lean one
#   BASE_IMAGE  Python 3.11 or newer on Debian; the image is as new as it is. A release names it by digest
#   BROWSER     yes: with ONNX Runtime for browsers, 41 MB, which the page's "Run in browser" needs; no: without
#   VERSION     a release's version, such as 1.2.3; git's tags are not in the image's context
#   REVISION    the commit, for the image's labels
#
# Models are baked in from models/, or mounted over them: --volume /srv/models:/models:ro

ARG BASE_IMAGE=python:3.11-slim
ARG RUNTIME=gpu
ARG VERSION=0.0.0

# --- What compiles and installs, then what is needed to serve. Only that is in the image.

# Who builds names the tag.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS dependencies
# The locale and strip are as new as the base is.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils locales \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir --parents /locale \
    && localedef --no-archive --inputfile en_US --charmap UTF-8 /locale/en_US.utf8
WORKDIR /src
COPY requirements/setup.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /setup \
    && /setup/bin/pip install --disable-pip-version-check --require-hashes --requirement requirements/setup.txt \
    && /setup/bin/uv venv --no-project --python "$(command -v python)" /opt/cohort
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
ARG RUNTIME
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache/uv \
    if [ "${RUNTIME}" = gpu ]; then lock=cuda; fi \
    && /setup/bin/uv pip sync --require-hashes --python /opt/cohort/bin/python "requirements/${lock:-${RUNTIME}}.txt"
RUN --mount=type=bind,source=deploy/containers/trim-packages.sh,target=/trim.sh \
    sh /trim.sh /opt/cohort

# --- Cohort by itself, to be laid over that environment.

FROM dependencies AS application
COPY app app
COPY pyproject.toml README.md LICENSE ./
ARG VERSION
RUN --mount=type=cache,target=/root/.cache/uv \
    SETUPTOOLS_SCM_PRETEND_VERSION_FOR_COHORT="${VERSION}" \
        /setup/bin/uv pip install --no-deps --python /opt/cohort/bin/python --prefix /application \
        --build-constraints requirements/setup.txt . \
    && rm -f /application/.lock \
    && /opt/cohort/bin/python -m compileall -q /application

# --- ONNX Runtime for browsers, which the page serves, to be laid over that environment.

FROM dependencies AS browser
ARG BROWSER=yes
RUN --mount=type=bind,source=deploy/playground,target=/fetch \
    packages="$(echo /opt/cohort/lib/python*/site-packages)" \
    && folder="/browser${packages#/opt/cohort}/cohort/http/playground/page/runtime" \
    && mkdir --parents "${folder}" \
    && if [ "${BROWSER}" = yes ]; then python /fetch/fetch.py --into "${folder}"; fi

# --- The base without what serving does not need.

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS root
COPY --from=dependencies /locale /usr/lib/locale
RUN --mount=type=bind,source=deploy/containers/trim-root.sh,target=/trim.sh \
    groupadd --gid 10001 cohort \
    && useradd --no-log-init --uid 10001 --gid cohort --home-dir /var/lib/cohort --shell /usr/sbin/nologin cohort \
    && sh /trim.sh \
    && install --directory --owner cohort --group cohort /var/lib/cohort /var/cache/cohort \
    && mkdir --parents /etc/cohort

# --- The image: a layer for what changes with the base, with the locks, with the examples, with the page, with the code.

FROM scratch AS image
# hadolint ignore=DL3067
COPY --from=root / /
COPY --from=dependencies /opt/cohort /opt/cohort
COPY models /models
COPY --from=browser /browser /opt/cohort
COPY --from=application /application /opt/cohort
ENV PATH=/opt/cohort/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=en_US.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    COHORT_HOST=0.0.0.0 \
    COHORT_ROLLOUTS=/etc/cohort/rollouts.yaml \
    COHORT_STATE=/var/lib/cohort \
    COHORT_CACHE=/var/cache/cohort \
    COHORT_LOG_FORMAT=json \
    COHORT_WATCHDOG_SECONDS=10
# What the NVIDIA container toolkit brings in; without it nothing comes of these.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG RUNTIME
ARG VERSION
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Cohort" \
    org.opencontainers.image.description="Serves ONNX models over HTTP and gRPC (${RUNTIME})" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    com.amazonaws.sagemaker.capabilities.multi-models=true \
    com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
USER 10001:10001
# The models folder is /models, by its default: a platform's variables may name another.
WORKDIR /
VOLUME ["/var/lib/cohort", "/var/cache/cohort"]
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=3 CMD ["python", "-I", "-m", "cohort.connections.probe"]
ENTRYPOINT ["cohort"]
CMD ["serve"]
