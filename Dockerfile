# exactspec serve. Models and compiled kernels are kept in the volume /data.
#   docker build -t exactspec .
#   docker run -p 127.0.0.1:8000:8000 -v exactspec:/data -e EXACTSPEC_API_KEY=... exactspec -m qwen2.5-coder-0.5b
FROM python:3.12-slim

WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[server]' \
 && rm -rf /build \
 && useradd --create-home --uid 1000 exactspec \
 && install -d -o exactspec /data

USER exactspec
WORKDIR /data
# Inside a container the published port decides who can reach it.
ENV EXACTSPEC_HOME=/data EXACTSPEC_HOST=0.0.0.0 EXACTSPEC_PORT=8000
VOLUME /data
EXPOSE 8000
# The first start downloads, packs and compiles: minutes, during which /health says 503.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15m \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["exactspec", "serve"]
