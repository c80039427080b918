# PyTorch cut for the GPUs that the image will run on; nothing of torchtailor stays in it.
#
#   docker build --build-arg GPU=9.0 -t pytorch-sm90 .
#   docker build --build-arg GPU=8.0,9.0 --build-arg OPTIONS=--nvidia .     # read docs/licences.md first
ARG PYTHON=3.13

FROM python:${PYTHON} AS torchtailor
COPY . /source
RUN python -m venv /opt/torchtailor && /opt/torchtailor/bin/pip install --no-cache-dir /source

FROM python:${PYTHON}-slim
ARG GPU
ARG OPTIONS=""
ARG TORCH=torch
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The installation and the cut are one layer: a later one cannot make an earlier one smaller.
# hadolint ignore=SC2086,DL3013
RUN --mount=from=torchtailor,source=/opt/torchtailor,target=/opt/torchtailor \
    : "${GPU:?add --build-arg GPU=9.0}" \
 && pip install --no-cache-dir "${TORCH}" \
 && /opt/torchtailor/bin/torchtailor tailor --env /usr/local --gpu "${GPU}" ${OPTIONS}
