"""Transformers as PyTorch exports them before attention became one operator: BERT, GPT-2, ViT."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.support.zoo.net import Net

_TOKENS = 128


def bert_base() -> onnx.ModelProto:
    """BERT-base, 128 tokens. Source: Devlin et al., NAACL 2019; as transformers exports it."""
    net = Net("bert_base", seed=21)
    size, heads = 768, 12
    ids = net.input("input_ids", (1, _TOKENS), TensorProto.INT64)
    mask = net.input("attention_mask", (1, _TOKENS), TensorProto.INT64)
    types = net.input("token_type_ids", (1, _TOKENS), TensorProto.INT64)
    words = net.op("Gather", net.normal(30522, size, std=0.5), ids, axis=0)
    x = net.op("Add", words, net.op("Gather", net.normal(2, size, std=0.5), types, axis=0))
    x = net.op("Add", x, net.normal(1, _TOKENS, size, std=0.5))
    x = net.layer_norm(x, size, 1e-12)
    wide = net.op("Unsqueeze", mask, net.constant([1, 2], np.int64))
    absent = net.op("Sub", net.constant(1.0), net.op("Cast", wide, to=TensorProto.FLOAT))
    bias = net.op("Mul", absent, net.constant(-10000.0))
    for _ in range(12):
        q, k, v = (net.linear(x, size, size) for _ in range(3))
        attended = _attention(net, [_heads(net, y, _TOKENS, size, heads) for y in (q, k, v)], bias)
        joined = _joined(net, attended, _TOKENS, size)
        x = net.layer_norm(net.op("Add", net.linear(joined, size, size), x), size, 1e-12)
        inner = _gelu_erf(net, net.linear(x, size, 4 * size))
        x = net.layer_norm(net.op("Add", net.linear(inner, 4 * size, size), x), size, 1e-12)
    first = net.op("Gather", x, net.constant(0, np.int64), axis=1)
    pooled = net.op("Tanh", net.linear(first, size, size))
    return net.model({"last_hidden_state": x, "pooler_output": pooled})


def gpt2() -> onnx.ModelProto:
    """GPT-2 small with its language head, 128 tokens, no cache. Source: Radford et al., 2019."""
    net = Net("gpt2", seed=22)
    size, heads = 768, 12
    ids = net.input("input_ids", (1, _TOKENS), TensorProto.INT64)
    words = net.normal(50257, size, std=0.5)
    x = net.op("Add", net.op("Gather", words, ids, axis=0), net.normal(1, _TOKENS, size, std=0.2))
    causal = np.tril(np.ones((1, 1, _TOKENS, _TOKENS), bool))
    bias = net.constant(np.where(causal, 0.0, -10000.0))
    for _ in range(12):
        y = net.linear(net.layer_norm(x, size, 1e-5), size, 3 * size)
        parts = net.ops("Split", 3, y, net.constant([size] * 3, np.int64), axis=2)
        attended = _attention(net, [_heads(net, part, _TOKENS, size, heads) for part in parts], bias)
        x = net.op("Add", net.linear(_joined(net, attended, _TOKENS, size), size, size), x)
        inner = _gelu_tanh(net, net.linear(net.layer_norm(x, size, 1e-5), size, 4 * size))
        x = net.op("Add", x, net.linear(inner, 4 * size, size))
    head = net.op("Transpose", words, perm=[1, 0])
    scaled = net.op("Mul", net.layer_norm(x, size, 1e-5), net.constant(1 / math.sqrt(size)))
    return net.model({"logits": net.op("MatMul", scaled, head)})


def vit_small() -> onnx.ModelProto:
    """ViT-small, 16 x 16 patches on 224 x 224. Source: Dosovitskiy et al., ICLR 2021; as timm has it."""
    net = Net("vit_small", seed=23)
    size, heads, tokens = 384, 6, 197
    image = net.input("x", (1, 3, 224, 224))
    weight = net.normal(size, 3, 16, 16, std=1 / math.sqrt(3 * 256))
    patches = net.op(
        "Conv", image, weight, net.normal(size, std=0.1), kernel_shape=(16, 16), strides=(16, 16)
    )
    flat = net.op("Transpose", net.reshape(patches, 1, size, 196), perm=[0, 2, 1])
    x = net.op("Concat", net.normal(1, 1, size), flat, axis=1)
    x = net.op("Add", x, net.normal(1, tokens, size, std=0.2))
    for _ in range(12):
        qkv = net.linear(net.layer_norm(x, size, 1e-6), size, 3 * size)
        turned = net.op(
            "Transpose", net.reshape(qkv, 1, tokens, 3, heads, size // heads), perm=[2, 0, 3, 1, 4]
        )
        parts = [net.op("Gather", turned, net.constant(i, np.int64), axis=0) for i in range(3)]
        attended = _attention(net, parts, None)
        x = net.op("Add", x, net.linear(_joined(net, attended, tokens, size), size, size))
        inner = _gelu_erf(net, net.linear(net.layer_norm(x, size, 1e-6), size, 4 * size))
        x = net.op("Add", x, net.linear(inner, 4 * size, size))
    first = net.op("Gather", net.layer_norm(x, size, 1e-6), net.constant(0, np.int64), axis=1)
    return net.model({"logits": net.linear(first, size, 1000)})


def _heads(net: Net, x: str, tokens: int, size: int, heads: int) -> str:
    return net.op("Transpose", net.reshape(x, 1, tokens, heads, size // heads), perm=[0, 2, 1, 3])


def _joined(net: Net, x: str, tokens: int, size: int) -> str:
    return net.reshape(net.op("Transpose", x, perm=[0, 2, 1, 3]), 1, tokens, size)


def _attention(net: Net, query_key_value: list[str], bias: str | None) -> str:
    """Scaled dot products of heads of 64 values each."""
    query, key, value = query_key_value
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.op("Div", scores, net.constant(8.0))
    if bias is not None:
        scores = net.op("Add", scores, bias)
    return net.op("MatMul", net.op("Softmax", scores, axis=-1), value)


def _gelu_erf(net: Net, x: str) -> str:
    error = net.op("Erf", net.op("Div", x, net.constant(math.sqrt(2))))
    product = net.op("Mul", x, net.op("Add", error, net.constant(1.0)))
    return net.op("Mul", product, net.constant(0.5))


def _gelu_tanh(net: Net, x: str) -> str:
    cubed = net.op("Mul", net.op("Pow", x, net.constant(3.0)), net.constant(0.044715))
    scaled = net.op("Mul", net.op("Add", x, cubed), net.constant(math.sqrt(2 / math.pi)))
    product = net.op("Mul", x, net.op("Add", net.op("Tanh", scaled), net.constant(1.0)))
    return net.op("Mul", product, net.constant(0.5))
