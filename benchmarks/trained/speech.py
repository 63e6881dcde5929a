"""Voiced sounds and noise made by a source and formants, for a detector of voices.

The sounds are vowels with a pitch that glides, as a simple synthesizer makes them. The model's own
decisions are the truth: what such sounds are is not for the generator to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.support.models import default_cache
from benchmarks.trained.case import Case
from benchmarks.trained.packages import package
from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.ingest.normalize import normalize

Array = np.ndarray

_SILERO, _WHISPER = "silero-vad==6.2.3", "faster-whisper==1.2.1"
_RATE, _WINDOW, _CONTEXT = 16_000, 512, 64
_VOWELS = (
    *((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410)),
)


def voice_activity(samples: int) -> Case:
    """Windows of sound with the state that the model had before them."""
    folder = package(_SILERO) / "silero_vad" / "data"
    states = {"state": ("stateN", (2, 1, 128))}
    return _windows(folder / "silero_vad_openvino_16k.onnx", samples, "output", states, {})


def voice_activity_of_whisper(samples: int) -> Case:
    """The same for the detector that comes with faster-whisper."""
    model = package(_WHISPER) / "faster_whisper" / "assets" / "silero_vad_v6.onnx"
    states = {"h": ("hn", (1, 1, 128)), "c": ("cn", (1, 1, 128))}
    return _windows(model, samples, "speech_probs", states, {"seq_len": 1})


def _windows(
    model: Path,
    samples: int,
    output: str,
    states: Mapping[str, tuple[str, tuple[int, ...]]],
    dims: Mapping[str, int],
) -> Case:
    """Windows that follow each other.

    Args:
        model: with the input `input`.
        samples: how many windows.
        output: the probability of a voice.
        states: of each input the output that follows it, and its shape.
        dims: of free dimensions.
    """
    path = normalize(model, default_cache() / f"{model.stem}-normalized", dict(dims)).path
    session = reference_session(path)
    fed: dict[str, list[Array]] = {name: [] for name in ("input", *states)}
    sound = _sound(samples + 1, np.random.default_rng(0))
    feed = {name: np.zeros(shape, np.float32) for name, (_, shape) in states.items()}
    for i in range(samples):
        feed["input"] = sound[None, i * _WINDOW : (i + 1) * _WINDOW + _CONTEXT]
        for name, value in feed.items():
            fed[name].append(value)
        made = run_session(session, feed, [follower for follower, _ in states.values()])
        feed = {name: made[follower] for name, (follower, _) in states.items()}
    return Case(
        model=model,
        inputs={name: np.stack(values) for name, values in fed.items()},
        evaluate=f"top1@{output}",
        dims=dims,
        about=f"{samples} windows of {_WINDOW * 1000 // _RATE} ms; agreement with the model",
    )


def _sound(windows: int, random: np.random.Generator) -> Array:
    """Vowels of 0.2 to 0.5 s and pauses in turn, with noise."""
    length = windows * _WINDOW + _CONTEXT
    parts, total = [], 0
    while total < length:
        count = int(random.uniform(0.2, 0.5) * _RATE)
        voiced = len(parts) % 2 == 0
        parts.append(_vowel(count, random) if voiced else np.zeros(count))
        total += count
    clean = np.concatenate(parts)[:length]
    noise = random.normal(0, 1, length) * 10 ** random.uniform(-3, -1.5)
    return (clean + noise).astype(np.float32)


def _vowel(count: int, random: np.random.Generator) -> Array:
    """A glottal pulse train through three resonances."""
    pitch = random.uniform(90, 240) * (1 + 0.1 * np.sin(np.linspace(0, random.uniform(2, 6), count)))
    phase = np.cumsum(pitch / _RATE)
    source = np.diff(np.floor(phase), prepend=0.0) + random.normal(0, 0.01, count)
    for formant in _VOWELS[int(random.integers(len(_VOWELS)))]:
        source = _resonance(source, formant, 60 + formant / 20)
    envelope = np.minimum(1.0, np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.03 * _RATE))
    return np.asarray(0.3 * envelope * source / max(np.abs(source).max(), 1e-9))


def _resonance(source: Array, hertz: float, bandwidth: float) -> Array:
    """A second-order resonator."""
    radius = np.exp(-np.pi * bandwidth / _RATE)
    first, second = 2 * radius * np.cos(2 * np.pi * hertz / _RATE), -(radius**2)
    made = np.zeros_like(source)
    one = two = 0.0
    for i, value in enumerate(source):
        one, two = value + first * one + second * two, one
        made[i] = one
    return made
