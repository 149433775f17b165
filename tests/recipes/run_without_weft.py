"""Runs exported files on saved supergraphs, in a process that has neither weft nor its sources.

Arguments: the model file, the .npz files of supergraphs, and the .npz to write; of ONNX the outputs
are those of onnxruntime, and `openvino_NAME` those of OpenVINO.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def onnx_outputs(path: str, supergraphs: list[dict[str, Any]]) -> dict[str, Any]:
    import onnxruntime
    import openvino

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    taken = [each.name for each in session.get_inputs()]
    names = [each.name for each in session.get_outputs()]
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", precise)
    found: dict[str, Any] = {}
    for number, supergraph in enumerate(supergraphs):
        inputs = {name: supergraph[name] for name in taken}
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        again = compiled(inputs)
        found |= {f"{name}_{number}": value for name, value in outputs.items()}
        found |= {f"openvino_{name}_{number}": again[name] for name in names}
    return found


def compiled_outputs(path: str, supergraphs: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    model = torch._inductor.aoti_load_package(path)
    taken = model.get_metadata()["inputs"].split()
    return {
        f"{name}_{number}": value.numpy()
        for number, supergraph in enumerate(supergraphs)
        for name, value in model(
            **{name: torch.from_numpy(supergraph[name]) for name in taken}
        ).items()
    }


def main(model: str, *files: str) -> None:
    *inputs, out = files
    supergraphs = [dict(np.load(file)) for file in inputs]
    run = onnx_outputs if model.endswith(".onnx") else compiled_outputs
    np.savez(out, **run(model, supergraphs))
    assert "weft" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
