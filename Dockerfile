# syntax=docker/dockerfile:1
#
# Two images of one wheel:
#
#   docker build --target attach -t disagg-node:0.1.0 .        the daemon alone, small
#   docker build --target launch -t disagg-node:0.1.0-vllm .   the daemon, vLLM and vllm-router
#
# Each holds the daemon in an environment of its own, /opt/disagg-node, at the versions of
# Dockerfile.constraints; nothing is installed into the environment of an engine.

ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm
# The vLLM that the tests run, of its CPU build.
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0


FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY Dockerfile.constraints pyproject.toml README.md LICENSE ./
COPY exporter exporter
COPY cluster cluster
COPY grafana grafana
COPY alerts alerts
COPY examples examples
COPY scripts/metadata_hook.py scripts/
# The constraints hold for the build's own environment, too, when they come by the variable.
RUN PIP_CONSTRAINT=/src/Dockerfile.constraints \
    python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .


FROM ${PYTHON_IMAGE} AS environment
COPY Dockerfile.constraints /wheels/
COPY --from=wheel /wheels /wheels
RUN python -m venv --without-pip /opt/disagg-node \
    && python -m pip --python /opt/disagg-node/bin/python install --no-cache-dir \
        --constraint /wheels/Dockerfile.constraints "$(ls /wheels/*.whl)[grpc,kubernetes]"


FROM ${PYTHON_IMAGE} AS attach
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="disagg-node" \
      org.opencontainers.image.description="GPU-seconds of LLM inference by phase" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=environment /opt/disagg-node /opt/disagg-node
RUN install -d -o 65532 -g 65532 /home/disagg
# The user has no line in /etc/passwd: what asks for a name or a home asks these.
ENV PATH=/opt/disagg-node/bin:$PATH HOME=/home/disagg USER=disagg PYTHONUNBUFFERED=1
WORKDIR /home/disagg
USER 65532:65532
EXPOSE 9847
# For Docker alone, and for a page without TLS; Kubernetes has probes.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:9847/healthz', timeout=3)"]
ENTRYPOINT ["disagg-node"]
CMD ["start"]


FROM ${VLLM_IMAGE} AS launch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="disagg-node with vLLM" \
      org.opencontainers.image.description="GPU-seconds of LLM inference by phase, and the engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY Dockerfile.constraints /wheels/
COPY --from=wheel /wheels /wheels
RUN python3 -m venv --without-pip /opt/disagg-node \
    && python3 -m pip --python /opt/disagg-node/bin/python install --no-cache-dir \
        --constraint /wheels/Dockerfile.constraints "$(ls /wheels/*.whl)[grpc,kubernetes]" \
    && install -d -o 65532 -g 65532 /home/disagg
# The router brings a stack of its own.
RUN python3 -m venv --without-pip /opt/vllm-router \
    && python3 -m pip --python /opt/vllm-router/bin/python install --no-cache-dir \
        vllm-router==0.1.17
ENV PATH=/opt/disagg-node/bin:$PATH HOME=/home/disagg USER=disagg PYTHONUNBUFFERED=1
WORKDIR /home/disagg
USER 65532:65532
EXPOSE 9847
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:9847/healthz', timeout=3)"]
# The first process starts the daemon again when it dies; the engines outlive that.
ENTRYPOINT ["disagg-node"]
CMD ["container-init", "--", "disagg-node", "start", "--config", "/etc/disagg-node/node.yaml"]
