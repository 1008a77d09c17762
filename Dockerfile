# The appliance in a container. CPU:  docker build -t ninfer .
# With an NVIDIA card (driver 580 or newer):  docker build --build-arg NINFER_TORCH_BUILD=cuda130 -t ninfer .
# The digest is the index of debian:bookworm-20260824-slim for every architecture; a tag alone moves.
ARG BASE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# A table of etc/wheels.toml: cpu, cuda130 or cuda126.
ARG NINFER_TORCH_BUILD=cpu
# Used where it is not empty, in place of the table's index.
ARG NINFER_TORCH_INDEX=
ENV NINFER_TORCH_BUILD=${NINFER_TORCH_BUILD} NINFER_TORCH_INDEX=${NINFER_TORCH_INDEX} \
    NINFER_VENV=/opt/ninfer/venv PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
# Versions of packages are those of Debian's stable archive, which keeps only the newest one of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && if [ "$NINFER_TORCH_BUILD" != cpu ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ninfer/app
# What decides the environment comes first, so that a change of the sources does not fetch torch again.
COPY pyproject.toml requirements.lock VERSION LICENSE ./
COPY etc/wheels.toml etc/wheels.toml
COPY tools/environment.py tools/environment.py
COPY appliance/__init__.py appliance/pci.py appliance/
COPY downloader/__init__.py downloader/
COPY engine/__init__.py engine/
COPY kernels/__init__.py kernels/
RUN python3 tools/environment.py && rm -rf /opt/ninfer/venv/tmp ./*.egg-info
COPY appliance appliance
COPY downloader downloader
COPY engine engine
COPY kernels kernels
COPY etc etc
# Compiled here, because nothing can be written there. By hash, so that two builds give the same bytes.
# The file left out is for a newer Python.
RUN /opt/ninfer/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash \
    -x 'torch/testing/_internal/py312' /opt/ninfer

FROM ${BASE}
ARG NINFER_TORCH_BUILD=cpu
# Triton compiles its launchers with the C compiler at first use; the CPU build needs none.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && if [ "$NINFER_TORCH_BUILD" != cpu ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 ninfer \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /workspace --shell /usr/sbin/nologin ninfer \
    && install -d -o 10001 -g 10001 /workspace /workspace/models /workspace/cache /workspace/state /run/ninfer
COPY --from=build /opt/ninfer /opt/ninfer
# HOME and the caches of libraries lie where the container may write. NVIDIA_* is for the runtime without CDI.
ENV PATH=/opt/ninfer/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/workspace/cache USER=ninfer \
    NINFER_HOME=/workspace \
    XDG_CACHE_HOME=/workspace/cache \
    TRITON_CACHE_DIR=/workspace/cache/triton \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /workspace
USER 10001:10001
# models can be fetched again, cache may be deleted at any time, state holds keys and the last good plan.
VOLUME ["/workspace/models", "/workspace/cache", "/workspace/state"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Until the first success failures do not count: the first start may fetch 20 GiB.
HEALTHCHECK --interval=30s --timeout=10s --start-period=2h --retries=3 \
    CMD ["/opt/ninfer/venv/bin/python", "-m", "appliance.healthcheck"]
CMD ["ninfer-appliance", "up", "--host", "0.0.0.0"]
