"""The HTTP client of a tuning server, as `collage tune --server URL` uses it.

    with Client("https://tuner.example.org", token) as client:
        job = client.create_job("model.onnx", ["onnxruntime", "openvino"])
        for event in client.events(job.id):
            print(event.message)
        client.artifact(job.id, Path("tuned.onnx"))

Models are streamed from disk and artifacts to disk. A broken stream of events is resumed where it broke.
A job has an idempotency key, so a request that is repeated after a broken connection makes no second job.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from collage.client.answers import FINISHED, RemoteJob, ServerError, checked, sse
from collage.events import Event
from collage.partitioner.errors import BadInputError

T = TypeVar("T")

_RETRIES = 5
_EVENT_FIELDS = tuple(field.name for field in fields(Event))


class Client:
    """A connection to one server. Safe from several threads.

    Args:
        url: for example `http://127.0.0.1:8000`.
        token: made by `collage token create`; by default `COLLAGE_TOKEN`, if that is set.
        timeout_s: for each read and write, not for a whole job.
        certificates: a PEM file with the authorities to trust, for a server with its own.
        transport: for tests; by default real connections.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 60.0,
        certificates: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        token = token or os.environ.get("COLLAGE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(
                base_url=url,
                headers=headers,
                timeout=timeout_s,
                verify=_trust(certificates),
                transport=transport,
            )
        except (httpx.InvalidURL, OSError) as error:
            raise BadInputError(f"server {url!r}: {error}") from None
        self._url = url.rstrip("/")

    def create_job(
        self,
        model: str | Path,
        targets: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        *,
        inputs: str | Path | None = None,
        labels: Sequence[str] = (),
        note: str | None = None,
        webhook: str | None = None,
        idempotency_key: str | None = None,
    ) -> RemoteJob:
        """Upload a model and queue a tuning job.

        Args:
            model: an ONNX file, or a zip of one with its external data.
            targets: texts of targets; where `options` give a plan, by default those that it names.
            options: as `TuneOptions.from_json` takes them.
            inputs: sample inputs (.npz).
            labels: words by which people find the job again.
            note: a text for people.
            webhook: address that is told when the job ends, where the server allows it.
            idempotency_key: by default a fresh one for this call.

        Raises:
            RefusedError: the model, a target or an option cannot be used.
            ServerError: the server failed or cannot be reached.
        """
        fields = {"targets": json.dumps(list(targets)), "options": json.dumps(dict(options or {}))}
        more = {
            "note": note,
            "webhook": webhook,
            "labels": json.dumps(list(labels)) if labels else None,
        }
        paths = {"model": Path(model), "inputs": None if inputs is None else Path(inputs)}
        return self._post_form("/v1/jobs", fields | _given(more), _given(paths), idempotency_key)

    def create_diagnosis(
        self,
        model: str | Path,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        inputs: str | Path | None = None,
        labels: Sequence[str] = (),
        note: str | None = None,
        webhook: str | None = None,
        idempotency_key: str | None = None,
    ) -> RemoteJob:
        """Upload a model and queue a diagnosis of one target; its artifact is a zip.

        Args:
            model: an ONNX file, or a zip of one with its external data.
            target: the target to look at.
            options: as `DiagnoseOptions` has them (docs/diagnose.md).
            inputs: sample inputs (.npz).
            labels: words by which people find the job again.
            note: a text for people.
            webhook: address that is told when the job ends, where the server allows it.
            idempotency_key: by default a fresh one for this call.

        Raises:
            RefusedError: the model, the target or an option cannot be used.
            ServerError: the server failed or cannot be reached.
        """
        fields = {"target": target, "options": json.dumps(dict(options or {}))}
        more = {
            "note": note,
            "webhook": webhook,
            "labels": json.dumps(list(labels)) if labels else None,
        }
        paths = {"model": Path(model), "inputs": None if inputs is None else Path(inputs)}
        return self._post_form("/v1/diagnoses", fields | _given(more), _given(paths), idempotency_key)

    def job(self, job_id: str) -> RemoteJob:
        """A job as it is now."""
        return self._job(self._get(f"/v1/jobs/{job_id}").json())

    def jobs(self, state: str | None = None, **filters: str | Sequence[str]) -> Iterator[RemoteJob]:
        """Jobs, newest first, page by page; filters as `GET /v1/jobs` has them."""
        for item in self._pages("/v1/jobs", {**filters, **({"state": state} if state else {})}):
            yield self._job(item)

    def cancel(self, job_id: str) -> RemoteJob:
        """Ask a job to stop; one that has ended stays as it is."""
        return self._job(self._send("POST", f"/v1/jobs/{job_id}/cancel").json())

    def remove(self, job_id: str) -> None:
        """Remove a job that has ended, with the files that are its own.

        Raises:
            RefusedError: there is no such job.
            ServerError: it has not ended; it is asked to stop.
        """
        answer = self._send("DELETE", f"/v1/jobs/{job_id}")
        if answer.status_code != 204:
            state = answer.json()["state"]
            raise ServerError(
                "job-not-done", 409, f"job {job_id} was {state}, so it was cancelled only"
            )

    def describe(
        self, job_id: str, *, labels: Sequence[str] | None = None, note: str | None = None
    ) -> RemoteJob:
        """Change a job's labels or its note; None leaves what is there."""
        changes = {"labels": None if labels is None else list(labels), "note": note}
        return self._job(self._send("PATCH", f"/v1/jobs/{job_id}", body=changes).json())

    def rerun(
        self,
        job_id: str,
        *,
        targets: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        note: str | None = None,
        webhook: str | None = None,
    ) -> RemoteJob:
        """Queue a job like this one.

        Args:
            job_id: the job to repeat.
            targets: in place of its own.
            options: those to change; None as a value brings the default back.
            labels: in place of its own.
            note: of the new job.
            webhook: of the new job.

        Raises:
            RefusedError: a change cannot be used, or there is no such job.
            ServerError: its files are not kept any more.
        """
        changes = {
            "targets": None if targets is None else list(targets),
            "options": dict(options or {}),
            "labels": None if labels is None else list(labels),
            "note": note,
            "webhook": webhook,
        }
        return self._job(self._send("POST", f"/v1/jobs/{job_id}/rerun", body=changes).json())

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """A job's progress until it ends; a broken stream is resumed.

        Args:
            job_id: the job.
            after: number of the last event that was seen.
        """
        failures = 0
        while True:
            try:
                with self._http.stream(
                    "GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(after)}
                ) as answer:
                    if answer.is_error:
                        answer.read()
                    for number, kind, data in sse(checked(answer)):
                        after, failures = number, 0
                        if kind == "progress":
                            yield Event(**{name: data[name] for name in _EVENT_FIELDS if name in data})
                        elif kind == "state":
                            yield Event(data["state"], data.get("reason") or f"job is {data['state']}")
                            if data["state"] in FINISHED:
                                return
            except httpx.TransportError as error:
                failures += 1
                if failures > _RETRIES:
                    raise self._unreachable(error) from None
                time.sleep(0.2 * 2**failures)

    def wait(self, job_id: str) -> RemoteJob:
        """The job after its end."""
        for _ in self.events(job_id):
            pass
        return self.job(job_id)

    def artifact(self, job_id: str, destination: Path) -> Path:
        """Download the partitioned model of a done job."""
        partial = destination.with_name(destination.name + ".part")
        try:
            with (
                self._http.stream("GET", f"/v1/jobs/{job_id}/artifact") as answer,
                partial.open("wb") as file,
            ):
                if answer.is_error:
                    answer.read()
                for chunk in checked(answer).iter_bytes():
                    file.write(chunk)
            partial.replace(destination)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        finally:
            partial.unlink(missing_ok=True)
        return destination

    def report(self, job_id: str) -> dict[str, Any]:
        """The report of a done job."""
        return dict(self._get(f"/v1/jobs/{job_id}/report").json())

    def plan(self, job_id: str) -> dict[str, Any]:
        """The plan of a done job, as `TuneOptions.plan` takes it."""
        return dict(self._get(f"/v1/jobs/{job_id}/plan").json())

    def targets(self) -> list[dict[str, Any]]:
        """The backends that the server knows."""
        return list(self._get("/v1/targets").json())

    def costs(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Costs of the server's database, newest first; filters as `GET /v1/costs` has them."""
        yield from self._pages("/v1/costs", filters)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post_form(
        self, path: str, fields: Mapping[str, str], paths: Mapping[str, Path], key: str | None
    ) -> RemoteJob:
        """Post files; one key for all tries, so that a repeated one makes no second job."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        for attempt in range(_RETRIES):
            files = {name: (file.name, _open(file)) for name, file in paths.items()}
            try:
                answer = self._http.post(path, data=dict(fields), files=files, headers=headers)
                return self._job(checked(answer).json())
            except httpx.TransportError as error:
                if attempt + 1 == _RETRIES:
                    raise self._unreachable(error) from None
                time.sleep(0.2 * 2**attempt)
            finally:
                for _, file in files.values():
                    file.close()
        raise AssertionError("the loop returns or raises")

    def _pages(self, path: str, query: Mapping[str, str | Sequence[str]]) -> Iterator[dict[str, Any]]:
        cursor: dict[str, str] = {}
        while True:
            page = self._get(path, {**query, **cursor}).json()
            yield from page["items"]
            if page["next"] is None:
                return
            cursor = {"cursor": page["next"]}

    def _get(self, path: str, query: Mapping[str, str | Sequence[str]] | None = None) -> httpx.Response:
        return self._send("GET", path, query)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | Sequence[str]] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        try:
            return checked(self._http.request(method, path, params=dict(query or {}), json=body))
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _job(self, data: dict[str, Any]) -> RemoteJob:
        links = data["links"]
        return RemoteJob(
            id=data["id"],
            state=data["state"],
            position=data["position"],
            reason=data["reason"],
            url=self._url + links["self"],
            page=self._url + links["page"],
            data=data,
        )

    def _unreachable(self, error: httpx.TransportError) -> ServerError:
        return ServerError("unreachable", 0, f"{self._url} cannot be reached: {error}")


def _trust(certificates: Path | None) -> Any:
    if certificates is None:
        return True
    return ssl.create_default_context(cafile=certificates)


def _open(path: Path) -> Any:
    if path.is_dir():
        raise BadInputError(
            f"{str(path)!r} is a folder, and a server takes one file: put all samples into one .npz, as first/x and "
            "second/x"
        )
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInputError(f"cannot read {str(path)!r}: {error.strerror}") from None


def _given(values: Mapping[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}
