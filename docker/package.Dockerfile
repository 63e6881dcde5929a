# An image that serves one package: its runtimes and the protocol, without the tuner.
#   docker build -f docker/package.Dockerfile --build-context package=model-package -t my-model .
#   docker run -p 8080:8080 my-model --instances 2 --name resnet
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/collage/bin:$PATH \
    HOME=/home/collage
RUN groupadd --gid 10001 collage \
    && useradd --uid 10001 --gid collage --create-home --shell /usr/sbin/nologin collage \
    && python -m venv /opt/collage

FROM base AS install
WORKDIR /source
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY requirements ./requirements
COPY partitioner ./partitioner
COPY backends ./backends
COPY cost_db ./cost_db
COPY collage ./collage
COPY service ./service
RUN pip install --no-cache-dir -c constraints.txt pip setuptools \
    && pip install --no-cache-dir --no-build-isolation -c constraints.txt '.[serving]'
# The exact versions that the package was measured with come last. `package` is a build context.
# hadolint ignore=DL3022
COPY --from=package requirements.txt /source/package.txt
RUN pip install --no-cache-dir -r package.txt

FROM base AS model
COPY --from=install /opt/collage /opt/collage
# hadolint ignore=DL3022
COPY --from=package . /package
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-m", "collage.serving.health_check"]
ENTRYPOINT ["python", "-m", "collage.serving", "/package", "--host", "0.0.0.0", "--port", "8080"]
