#!/usr/bin/env python3
"""Writes files with PyTorch's own torch.save, which tests/checkpoint reads. Run it with .venv-peers:

    .venv-peers/bin/python benchmarks/peers/record_torch_files.py

Element i of a tensor, counted row by row, is i - 3 (halves and doubles too).
"""
import argparse
import collections
import pathlib

import numpy
import torch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "checkpoint" / "records"


def numbers(*shape, dtype=torch.float32):
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=torch.float32) - 3).to(dtype).reshape(shape)


def state_dict():
    whole = torch.full((10, 4), 99.0)
    whole[5:7] = numbers(2, 4)
    tied = numbers(3, 2)
    return collections.OrderedDict(
        [
            ("body.weight", numbers(2, 3)),
            ("body.transposed", numbers(4, 3).t().contiguous().t()),
            ("body.cut", whole[5:7]),
            ("body.expanded", torch.full((1,), -3.0).expand(1, 1)),
            ("half", numbers(7, dtype=torch.float16)),
            ("bfloat16", numbers(7, dtype=torch.bfloat16)),
            ("double", numbers(7, dtype=torch.float64)),
            ("one", numbers()),
            ("none", numbers(0, 5)),
            ("embedding.weight", tied),
            ("head.weight", tied),
        ]
    )


def with_attributes():
    """Returns tensors with Python attributes, which torch.save writes in two other ways."""
    parameter = torch.nn.Parameter(numbers(2, 3))
    tensor = numbers(4)
    parameter.tag = tensor.tag = "kept by Python"
    return {"parameter": parameter, "tensor": tensor, "buffer": torch.nn.Buffer(numbers(2))}


def other_values():
    return {
        "args": argparse.Namespace(lr=0.1, names=["a", "b"]),
        "best": numpy.float64(3.5),
        "table": numpy.arange(3),
        "seen": {1, 2},
        "dtype": torch.float16,
        "path": pathlib.PurePosixPath("a/b"),
        "large": 1 << 100,
        "groups": collections.defaultdict(list),
        "bytes": b"abc",
        "complex": 1 + 2j,
        "epoch": 3,
        "name": "x",
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    weights = state_dict()
    torch.save(weights, FOLDER / "state_dict.pt")
    torch.save(dict(weights), FOLDER / "dict.pt")
    layer = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(numbers(2, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {"epoch": 3, "loss": 0.5, "model": weights, "optimizer": optimizer.state_dict()},
        FOLDER / "checkpoint.pt",
    )
    torch.save({"w": torch.nn.Parameter(numbers(2, 3))}, FOLDER / "parameter.pt")
    torch.save(layer.state_dict(), FOLDER / "buffers.pt")
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
    with torch.no_grad():
        for parameter in script.parameters():
            parameter.copy_(numbers(*parameter.shape))
    torch.jit.save(script, FOLDER / "script.pt")
    torch.save(with_attributes(), FOLDER / "attributes.pt")
    torch.save({"w": numbers(2, 3), **other_values()}, FOLDER / "other_values.pt")
    torch.save(
        {"epoch": 3, "arch": "resnet", "state_dict": weights, "best_acc1": numbers(), **other_values()},
        FOLDER / "imagenet.pt",
    )
    torch.save(
        {"w": numbers(2), "u16": numbers(4).abs().to(torch.uint16), "f8": numbers(5).to(torch.float8_e4m3fn)},
        FOLDER / "types.pt",
    )
    torch.serialization.set_crc32_options(False)
    torch.save({"w": numbers(2, 3)}, FOLDER / "unchecked.pt")
    torch.serialization.set_crc32_options(True)
    # Files that must be refused.
    pairs = torch.complex(numbers(4), numbers(4))
    torch.save({"w": pairs.conj().imag}, FOLDER / "negative.pt")
    torch.save({"w": pairs.clone().conj()}, FOLDER / "conjugate.pt")
    torch.save(weights, FOLDER / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(layer, FOLDER / "module.pt")
    quantised = torch.quantize_per_tensor(numbers(4), 0.5, 0, torch.qint8)
    torch.save({"w": quantised}, FOLDER / "quantised.pt")
    torch.save({"w": torch.eye(3).to_sparse()}, FOLDER / "sparse.pt")
    torch.save(weights, FOLDER / "protocol4.pt", pickle_protocol=4)
    torch.save([numbers(2)], FOLDER / "list.pt")
    torch.save({"epoch": 3}, FOLDER / "no_tensors.pt")


main()
