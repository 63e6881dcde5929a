"""Melodies of one voice, for a model that writes down notes; each frame's pitch is known."""

from __future__ import annotations

import numpy as np

from benchmarks.trained.case import Case
from benchmarks.trained.packages import package

_BASIC_PITCH = "basic-pitch==0.4.0"
_RATE, _SAMPLES, _FRAMES, _HOP, _LOWEST = 22_050, 43_844, 172, 256, 21
_NOTES, _PARTIALS = (45, 84), 5


def melodies(samples: int) -> Case:
    """Two seconds each: notes without pauses, with overtones and noise; a row for each frame."""
    sounds, labels = [], []
    for seed in range(samples):
        sound, pitches = _melody(np.random.default_rng(seed))
        sounds.append(sound)
        labels.append(pitches - _LOWEST)
    folder = package(_BASIC_PITCH) / "basic_pitch" / "saved_models" / "icassp_2022"
    return Case(
        model=folder / "nmp.onnx",
        inputs={"serving_default_input_2:0": np.stack(sounds)[:, None, :, None]},
        evaluate="top1@StatefulPartitionedCall:1",
        labels={"labels": np.stack(labels)},
        dims={"unk__749": 1},
        about=f"{samples} melodies of two seconds",
    )


def _melody(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sound, and the pitch of each frame as a MIDI number."""
    pitches = np.zeros(_SAMPLES, np.int64)
    start = 0
    while start < _SAMPLES:
        length = int(random.uniform(0.25, 0.7) * _RATE)
        pitches[start : start + length] = random.integers(*_NOTES)
        start += length
    hertz = 440.0 * 2.0 ** ((pitches - 69) / 12)
    phase = 2 * np.pi * np.cumsum(hertz / _RATE)
    weights = random.uniform(0.2, 1.0, _PARTIALS) / np.arange(1, _PARTIALS + 1)
    sound = sum(w * np.sin(n * phase) for n, w in enumerate(weights, 1))
    sound = 0.4 * sound / np.abs(sound).max() + random.normal(0, 0.005, _SAMPLES)
    frames = np.minimum(np.arange(_FRAMES) * _HOP, _SAMPLES - 1)
    return sound.astype(np.float32), pitches[frames]
