"""`collage serve-model`, and `python -m collage.serving` where the tuner is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve_model(
    model: Annotated[Path, typer.Argument(help="An artifact's file, or a package's folder.")],
    instances: Annotated[
        int | None, typer.Option(min=1, max=256, help="So many requests run at once [as tuned, or 1].")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Threads of one instance of an artifact [cores / instances]."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8080,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=65536, help="Join requests up to so many rows; 1 joins none [as tuned, or 1]."
        ),
    ] = None,
    max_delay_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="How long a request waits for others to join.")
    ] = 2.0,
    queue: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="So many requests may wait; more get 429.")
    ] = 256,
    max_request_mb: Annotated[
        int, typer.Option(min=1, max=65536, help="Longest request; longer ones get 413.")
    ] = 64,
    name: Annotated[
        str | None, typer.Option(help="The model's name in paths [the file's or folder's].")
    ] = None,
    fallback: Annotated[
        bool,
        typer.Option("--fallback", help="Serve on ONNX Runtime what cannot run here as planned."),
    ] = False,
) -> None:
    """Serve MODEL over HTTP by the Open Inference Protocol."""
    from collage.serving.server import ServingOptions
    from collage.serving.server import serve_model as serve

    options = ServingOptions(
        host=host,
        port=port,
        instances=instances,
        threads=threads,
        max_batch_size=max_batch_size,
        max_delay_ms=max_delay_ms,
        queue=queue,
        max_request_mb=max_request_mb,
        name=name,
        fallback=fallback,
    )
    serve(model, options)
