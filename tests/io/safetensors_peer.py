"""Python's safetensors, for safetensors_peer_test.cpp: writes a file, or lists one.

usage: safetensors_peer.py write FILE | list FILE
`list` prints a line a tensor: name in hex, dtype, shape, bytes in hex.
"""

import sys

import numpy as np
import safetensors
import safetensors.numpy

TYPES = "bool uint8 int8 int16 uint16 float16 int32 uint32 float32 float64 int64 uint64".split()


def tensors():
    """Returns tensors of all numpy types: 0-d, empty, and of 15 elements; values count up by byte."""
    named = {}
    for name in TYPES:
        size = np.dtype(name).itemsize
        raw = (np.arange(15 * size) % (2 if name == "bool" else 251)).astype(np.uint8)
        named[f"{name}.matrix"] = raw.view(name).reshape(3, 5)
        named[f"{name}.scalar"] = raw[:size].view(name).reshape(())
        named[f"{name}.empty"] = np.zeros((2, 0, 3), name)
    named['quote " backslash \\ é 𐍈'] = np.ones(1, np.uint8)
    return named


def main(verb, path):
    if verb == "write":
        safetensors.numpy.save_file(tensors(), path, {"format": "pt"})
    elif verb == "list":
        with open(path, "rb") as file:
            for name, tensor in sorted(safetensors.deserialize(file.read())):
                shape = ",".join(map(str, tensor["shape"]))
                print(f"{name.encode().hex()} {tensor['dtype']} [{shape}] {bytes(tensor['data']).hex()}")
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
