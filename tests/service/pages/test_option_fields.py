"""The form of a new job has a control for every option of the API, and folds all but a few."""

from __future__ import annotations

from html.parser import HTMLParser

from collage.metrics.names import METRICS, parse_metric
from collage.options import TuneOptions
from collage.service.pages.option_fields import common_fields, task_fields
from tests.service.conftest import RunningServer

# One field for each free dimension of the chosen model, made when the model is read.
_MADE_LATER = {"dims"}


class _Form(HTMLParser):
    """The controls of a page that name an option."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[str] = set()
        self.folded: set[str] = set()
        self.ids: set[str] = set()
        self._details = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._details += tag == "details"
        found = dict(attributes)
        self.ids.add(found.get("id") or "")
        if name := found.get("data-option"):
            assert name not in self.open | self.folded, f"{name} is there twice"
            (self.folded if self._details else self.open).add(name)

    def handle_endtag(self, tag: str) -> None:
        self._details -= tag == "details"


def test_the_form_has_every_option_of_the_api(shared_server: RunningServer) -> None:
    form = _Form()
    form.feed(shared_server.http.get("/new").text)
    assert form.open | form.folded | _MADE_LATER == set(TuneOptions.model_fields)
    assert form.open == {field.name for field in common_fields()}
    assert form.ids >= _MADE_LATER


def test_every_metric_is_proposed() -> None:
    (field,) = [each for each in task_fields() if each.name == "evaluate"]
    assert {each.partition("=")[0] for each in field.proposed} == set(METRICS)
    for each in field.proposed:
        parse_metric(each)
