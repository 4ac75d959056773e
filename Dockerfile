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
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git libgloo-dev nlohmann-json3-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/shardwise
ENV PATH=/opt/shardwise/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$TORCH" \
 && pip install numpy rich
RUN python -m venv --system-site-packages /opt/tools \
 && echo "$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')" \
      > "$(/opt/tools/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/torch.pth" \
 && /opt/tools/bin/pip install 'scikit-build-core>=1.1' 'setuptools-scm>=8' 'cmake>=3.24,<5' ninja
# The image's context has no .git of its own where a release is built: VERSION then names it.
ARG VERSION=""
COPY . /src
RUN export PATH=/opt/tools/bin:$PATH ${VERSION:+SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION"} \
 && pip wheel --no-build-isolation --no-deps --wheel-dir /wheels --config-settings=build-dir=/tmp/build /src \
 && /opt/shardwise/bin/pip install --no-deps /wheels/*.whl \
 && /opt/shardwise/bin/python -m shardwise doctor --no-links

FROM python:${PYTHON}-slim
RUN useradd --create-home shardwise
COPY --from=builder /opt/shardwise /opt/shardwise
ENV PATH=/opt/shardwise/bin:$PATH
USER shardwise
WORKDIR /work
CMD ["python", "-m", "shardwise", "doctor"]
