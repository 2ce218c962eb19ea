# plm_jax for TPUs or CPUs, from the checkout: docker build --tag=plm_jax .
#   docker build --build-arg=EXTRA=tpu --tag=REGION-docker.pkg.dev/PROJECT/REPOSITORY/plm_jax:latest .
#   docker run --rm plm_jax train --config=experiments/quickstart/pretrain.py --workdir=/tmp/run
FROM python:3.12-slim
# extra lists of requirements/, such as 'tpu' or 'buckets scores'
ARG EXTRA=buckets
WORKDIR /plm_jax
COPY requirements.txt ./
COPY requirements requirements
COPY launch launch
# before the code, so that a change of the code installs nothing again
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN read -ra extras <<<"$EXTRA" && PIP_NO_CACHE_DIR=1 bash launch/setup.sh "${extras[@]}"
COPY . .
ENV PATH=/plm_jax/.venv/bin:$PATH
ENTRYPOINT ["plm-jax"]
