# SPDX-License-Identifier: Apache-2.0
"""Export the networks of `tvm_ext.workloads` from torchvision and transformers.

    python benchmarks/export_networks.py [--folder FOLDER] [NETWORK ...]

Each is exported by `torch.export` and read by TVM's importer, with the modules' names, its
parameters as inputs and without their values. Writes ``NETWORK.json.gz``, the module as
`tvm.ir.save_json` writes it, and brings ``networks.json``, the table of them, up to date.
Needs torch, torchvision and transformers beside TVM; run it again for the next version of any.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import test_libraries  # noqa: F401 - lets the next one be found
import torch
import tvm
from saved_json import saved_json
from tvm import relax

from tvm_ext import from_exported_program

FOLDER = Path(__file__).parents[1] / "tvm_ext" / "workloads" / "exported"
INDEX = "networks.json"
LICENCES = {"torchvision": "BSD-3-Clause", "transformers": "Apache-2.0"}
"""Of the definitions that the networks are exported from, by package."""


def torchvision_library() -> Any:
    """Import torchvision, also where its compiled operators do not load.

    They are built for one build of torch each. No network here uses them, but without the names of
    two of them the Python part cannot be imported.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    _KEPT.append(library)  # What it defines is gone when the library is.
    return torchvision


_KEPT: list[torch.library.Library] = []


@dataclass(frozen=True)
class Source:
    """Where a network comes from, and what it is exported with."""

    package: str  # torchvision or transformers
    description: str  # One line for people
    build: Callable[[], torch.nn.Module]  # Make the network
    inputs: Callable[[], tuple[torch.Tensor, ...]]  # Make example inputs
    dynamic: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    """Symbolic dimensions, by input and axis."""


# ------------------------------------------------------------------------------------ torchvision


class _Outputs(torch.nn.Module):
    """A network whose outputs come as a tuple of tensors, without names."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: torch.Tensor) -> Any:
        found = self.network(*inputs)
        return tuple(found.values()) if len(found) > 1 else next(iter(found.values()))


class _Heads(torch.nn.Module):
    """A single-shot detector without what sorts its boxes: backbone and heads."""

    def __init__(self, detector: torch.nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, image: torch.Tensor) -> Any:
        return tuple(self.head(list(self.backbone(image).values())).values())


def vision(
    name: str,
    description: str,
    size: int = 224,
    made_of: Callable[[Any], torch.nn.Module] = lambda network: network,
    **options: Any,
) -> Source:
    """Return what is made of a network of `torchvision.models` for images of `size` by `size`."""

    def build() -> torch.nn.Module:
        return made_of(torchvision_library().models.get_model(name, weights=None, **options))

    said = f"{description} at {size}x{size}"
    return Source("torchvision", said, build, lambda: (torch.zeros(1, 3, size, size),))


_ALONE = {"weights_backbone": None}

# ----------------------------------------------------------------------------------- transformers


class _Results(torch.nn.Module):
    """A network of transformers, of positional inputs, that returns some of its results."""

    def __init__(self, network: torch.nn.Module, names: tuple[str, ...], *results: str) -> None:
        super().__init__()
        self.network, self.names, self.results = network, names, results

    def forward(self, *inputs: torch.Tensor) -> Any:
        found = self.network(**dict(zip(self.names, inputs, strict=True)), return_dict=True)
        made = tuple(getattr(found, result) for result in self.results)
        return made if len(made) > 1 else made[0]


Input = tuple[tuple[int, ...], torch.dtype]
Call = tuple[Mapping[str, Input], tuple[str, ...]]
"""Shape and type of each input by name, and the names of the results."""


def _tokens(*shape: int) -> Input:
    return shape, torch.int64


def _numbers(*shape: int) -> Input:
    return shape, torch.float32


def _text(length: int, *results: str) -> Call:
    return {"input_ids": _tokens(1, length)}, results or ("last_hidden_state",)


def transformer(
    model: str,
    config: str,
    options: Mapping[str, Any],
    description: str,
    call: Call,
) -> Source:
    """Return a class of transformers, with a configuration and its arguments."""
    inputs, results = call

    def build() -> torch.nn.Module:
        torchvision_library()  # Transformers imports it where it is installed.
        import transformers

        arguments = {
            key: getattr(transformers, value[0])(**value[1]) if isinstance(value, tuple) else value
            for key, value in options.items()
        }
        made = getattr(transformers, config)(**arguments)
        if hasattr(made, "use_cache"):
            made.use_cache = False
        network = getattr(transformers, model)(made)
        return _Results(network, tuple(inputs), *results)

    def examples() -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones(shape, dtype=dtype) for shape, dtype in inputs.values())

    return Source("transformers", description, build, examples)


_SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
_LLAMA = {**_SMALL, "num_key_value_heads": 2, "vocab_size": 1000}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 4, "vocab_size": 1000}
_WHISPER = {
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "vocab_size": 1000,
    "max_source_positions": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_CLIP_TEXT = {**_SMALL, "vocab_size": 1000, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
_CLIP_VISION = {**_SMALL, "image_size": 224, "patch_size": 32}

SOURCES: dict[str, Source] = {
    "resnet18": vision("resnet18", "ResNet-18"),
    "resnet50": vision("resnet50", "ResNet-50"),
    "resnet50_dynamic": replace(
        vision("resnet50", ""),
        description="ResNet-50 at 224x224, any batch of 2 to 64",
        inputs=lambda: (torch.zeros(4, 3, 224, 224),),
        dynamic={0: {0: torch.export.Dim("batch", min=2, max=64)}},
    ),
    "mobilenet_v2": vision("mobilenet_v2", "MobileNetV2"),
    "mobilenet_v3": vision("mobilenet_v3_large", "MobileNetV3 (large)"),
    "shufflenet": vision("shufflenet_v2_x1_0", "ShuffleNetV2 (1.0)"),
    "squeezenet": vision("squeezenet1_1", "SqueezeNet 1.1"),
    "efficientnet_b0": vision("efficientnet_b0", "EfficientNet-B0"),
    "densenet121": vision("densenet121", "DenseNet-121"),
    "inception_v3": vision(
        "inception_v3", "Inception v3", size=299, aux_logits=False, init_weights=False
    ),
    "convnext_tiny": vision("convnext_tiny", "ConvNeXt-Tiny"),
    "swin_t": vision("swin_t", "Swin-T"),
    "vit_b_16": vision("vit_b_16", "ViT-B/16"),
    "deeplabv3": vision(
        "deeplabv3_mobilenet_v3_large",
        "DeepLabV3 on MobileNetV3, segmentation",
        256,
        _Outputs,
        **_ALONE,
    ),
    "frcnn_backbone": vision(
        "fasterrcnn_resnet50_fpn",
        "backbone and feature pyramid of Faster R-CNN on ResNet-50",
        320,
        lambda detector: _Outputs(detector.backbone),
        **_ALONE,
    ),
    "ssdlite": vision(
        "ssdlite320_mobilenet_v3_large", "SSDlite on MobileNetV3", 320, _Heads, **_ALONE
    ),
    "bert": transformer(
        "BertModel",
        "BertConfig",
        {**_SMALL, "vocab_size": 1000},
        "small BERT, 3 layers of 128, 64 tokens",
        _text(64),
    ),
    "bert_base": transformer(
        "BertModel", "BertConfig", {}, "BERT-base, 12 layers of 768, 128 tokens", _text(128)
    ),
    "gpt2": transformer(
        "GPT2LMHeadModel",
        "GPT2Config",
        {},
        "GPT-2, 12 layers of 768, 128 tokens",
        _text(128, "logits"),
    ),
    "llama": transformer(
        "LlamaForCausalLM",
        "LlamaConfig",
        {**_LLAMA, "tie_word_embeddings": False},
        "small LLaMA, 3 layers of 128, 64 tokens",
        _text(64, "logits"),
    ),
    "t5": transformer(
        "T5Model",
        "T5Config",
        _T5,
        "small T5, 3 layers of 128 on each side, 48 and 40 tokens",
        (
            {"input_ids": _tokens(1, 48), "decoder_input_ids": _tokens(1, 40)},
            ("last_hidden_state",),
        ),
    ),
    "whisper": transformer(
        "WhisperModel",
        "WhisperConfig",
        _WHISPER,
        "small Whisper, 3 layers of 128 on each side, 200 frames and 40 tokens",
        (
            {"input_features": _numbers(1, 80, 200), "decoder_input_ids": _tokens(1, 40)},
            ("last_hidden_state",),
        ),
    ),
    "clip": transformer(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION},
        "small CLIP, 3 layers of 128 on each side, 16 tokens and 224x224",
        (
            {"input_ids": _tokens(2, 16), "pixel_values": _numbers(2, 3, 224, 224)},
            ("logits_per_image",),
        ),
    ),
    "segformer": transformer(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {},
        "SegFormer-B0, segmentation at 256x256",
        ({"pixel_values": _numbers(1, 3, 256, 256)}, ("logits",)),
    ),
}
"""Where each network of `tvm_ext.workloads` comes from, by name."""


def exported(source: Source) -> tvm.IRModule:
    """Return the Relax module of a network, its parameters as inputs."""
    torch.manual_seed(0)
    inputs = source.inputs()
    shapes = tuple(dict(source.dynamic.get(index, {})) for index in range(len(inputs)))
    with torch.no_grad():
        program = torch.export.export(
            source.build().eval(), inputs, dynamic_shapes=shapes if source.dynamic else None
        )
    for node in program.graph.nodes:
        # PyTorch sums booleans as 64-bit integers; TVM's importer would keep booleans, whose sum no
        # code generator takes.
        if node.target is torch.ops.aten.cumsum.default:
            node.kwargs = {"dtype": torch.int64, **node.kwargs}
    mod = from_exported_program(program, keep_params_as_input=True)
    mod, _ = relax.frontend.detach_params(mod)
    text = saved_json(mod)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for given, axes in zip(placeholders[-len(inputs) :], shapes, strict=True):
        for axis, dimension in axes.items():
            # PyTorch calls it s77; as an input's size and as the key of its bounds.
            symbol = json.dumps(str(given.meta["val"].shape[axis]))
            text = text.replace(symbol, json.dumps(dimension.__name__))
    return tvm.ir.load_json(text)


def described(name: str, source: Source) -> dict[str, str]:
    """Return the row of a network in the table."""
    package = source.package
    return {
        "name": name,
        "description": source.description,
        "source": f"{package} {version(package).partition('+')[0]}",
        "licence": LICENCES[package],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    index = arguments.folder / INDEX
    rows = {row["name"]: row for row in json.loads(index.read_text())} if index.exists() else {}
    for name in arguments.networks or SOURCES:
        if name not in SOURCES:
            parser.error(f"unknown network {name!r}; there are: {', '.join(SOURCES)}")
        start = time.perf_counter()
        text = saved_json(exported(SOURCES[name]))
        # The same module gives the same bytes: no time of writing, no name of a file.
        data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
        (arguments.folder / f"{name}.json.gz").write_bytes(data)
        rows[name] = described(name, SOURCES[name])
        kept = [rows[known] for known in SOURCES if known in rows]
        index.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {len(data):,} bytes, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
