# dynedge with its service, on a CPU:  docker build -t dynedge .
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
      "$(ls /wheels/*.whl)[serve,redis]" \
    && useradd --create-home --uid 1000 dynedge \
    && install -d -o dynedge /data /kernels
USER 1000
# Compiled kernels are kept outside the image, so that a new container does not compile again.
ENV DYNEDGE_CACHE_DIR=/kernels
VOLUME ["/data", "/kernels"]
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=180s CMD \
  ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["dynedge"]
CMD ["doctor"]
