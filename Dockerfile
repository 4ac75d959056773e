# Shardwise with torch for CPUs, ready for torchrun:
#
#   docker build -t shardwise .
#   docker run --rm --shm-size=1g shardwise                                    # python -m shardwise doctor
#   docker run --rm --shm-size=1g -v "$PWD:/work" shardwise torchrun --nproc-per-node 4 first.py
#
# --build-arg TORCH=2.14.1 chooses the torch, --build-arg TORCH_INDEX=<index of CPU wheels> saves several GB of CUDA.

ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS builder
ARG TORCH=2.13.0
ARG TORCH_INDEX=""
# hadolint ignore=DL3008  # the compiler of the image's Debian, whichever it is
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git libgloo-dev nlohmann-json3-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/shardwise
ENV PATH=/opt/shardwise/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3013  # ranges are pyproject.toml's
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$TORCH" \
 && pip install --target /opt/tools "scikit-build-core>=1.1" "setuptools-scm>=8" "cmake>=3.24,<5" ninja
# Where the context has no .git, VERSION names the version.
ARG VERSION=""
COPY . /src
RUN export PATH=/opt/tools/bin:$PATH PYTHONPATH=/opt/tools ${VERSION:+SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION"} \
 && pip wheel --no-build-isolation --no-deps --wheel-dir /wheels --config-settings=build-dir=/tmp/build /src
RUN pip install /wheels/*.whl && pip check && python -m shardwise doctor --no-links

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 1000 shardwise
COPY --from=builder /opt/shardwise /opt/shardwise
ENV PATH=/opt/shardwise/bin:$PATH
USER 1000
WORKDIR /work
CMD ["python", "-m", "shardwise", "doctor"]
