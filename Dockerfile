# weft for CPUs, installed as a user would from its wheel.
#
#   docker build -t weft .
#   docker run --rm -v "$PWD:/data" weft train molecules --data mine.extxyz --out runs/mine
#
# torch's wheels for Linux bring the libraries of CUDA along, several GB of them; an index that has
# torch for CPUs alone makes a small image:  --build-arg TORCH_INDEX=ADDRESS
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG TORCH_INDEX=""
# torch.compile and `weft export RUN model.pt2` compile C++; any compiler of this release does.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir --index-url "$TORCH_INDEX" -c /tmp/constraints.txt torch; \
    fi \
    && pip install --no-cache-dir -c /tmp/constraints.txt \
         "$(echo /tmp/wheels/weft-*.whl)[chem,report]" \
    && rm -r /tmp/wheels /tmp/constraints.txt
RUN useradd --create-home --uid 1000 weft
USER 1000
# Data sets and compiled loops are kept in the user's cache: a volume there keeps them.
WORKDIR /data
ENTRYPOINT ["weft"]
CMD ["--help"]
