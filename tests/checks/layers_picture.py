#!/usr/bin/env python3
"""docs/images/layers.svg shows the layers of include_order.py: each one lies on exactly those that it uses directly.

  layers_picture.py           checks the places below, and that the picture is what they give
  layers_picture.py --write   draws it
"""
import sys

from include_order import COLLECTIVES, DIST_OPTIM, JOB, LAYERS, WITHOUT_TORCH, layer_of
from sources import ROOT, cxx_files

PICTURE = ROOT / "docs" / "images" / "layers.svg"

# Layer -> its left and right edge in percent, its floor, and its contents. The folders of one library count as one layer.
PLACES = {
    "rpc": (0, 100, 0, "agents, typed methods, futures, streams, transports", "Asio, Cap'n Proto, OpenSSL"),
    "rpc/testing": (0, 8.3, 1, "simulated", "networks"),
    "rpc/observe": (8.3, 16.6, 1, "logs,", "metrics"),
    "dist_optim/serve": (16.6, 29.2, 1, "batches of", "requests"),
    "parallel/schedule": (29.2, 42, 1, "schedules", "of pipelines"),
    "parallel/partition": (29.2, 42, 2, "cuts of models", "into stages"),
    "parallel/planner": (29.2, 42, 3, "splits of ranks", "into dimensions"),
    "rref": (42, 53.95, 1, "references to", "remote objects"),
    "rpc/tensor": (53.95, 68.3, 1, "tensors in calls,", "device maps"),
    "rpc/job": (68.3, 76.6, 1, "stores,", "members"),
    "parallel/collectives/flight": (76.6, 100, 1, "flight recorder", "of collectives"),
    "dist_autograd": (42, 56.8, 2, "backward", "through calls"),
    "parallel/weights": (56.8, 67.3, 2, "files of", "tensors"),
    "parallel/collectives": (67.3, 100, 2, "process groups: shared memory,", "messages, NCCL"),
    "dist_optim": (42, 61, 3, "optimizers next to", "remote parameters"),
    "parallel/training": (67.3, 100, 3, "samplers, broadcasts, clipping:", "for each kind of training"),
    "dist_optim/embedding": (42, 58, 4, "tables of rows", "on several owners"),
    "parallel/tensor_parallel": (64, 82, 4, "layers split", "over the ranks"),
    "parallel/data_parallel": (82, 100, 4, "replicas of a model;", "also on dist_autograd"),
    "parallel/sharded": (64, 84, 5, "ZeRO and FSDP;", "also on dist_optim"),
    "parallel/elastic": (84, 100, 5, "workers that join", "and die"),
    "parallel/pipeline": (64, 80, 6, "models in stages;", "also on partition"),
    "parallel/elastic/sharded": (80, 100, 6, "state of", "parts"),
    "parallel/elastic/pipeline": (64, 100, 7, "stages of pipelines", "that change their workers"),
}
# Layers that are used but not below: the plane has no room. The box names them.
ALSO_USES = {"parallel/sharded": {"dist_optim"}, "parallel/pipeline": {"parallel/partition"}, "parallel/data_parallel": {"dist_autograd"}}

WIDTH, FLOOR, MARGIN, GAP = 860, 78, 12, 3
NAME, WORDS = 9, 6.7  # the width of a character, in a wide font
STYLE = """<style>
  text { font: 11px system-ui, sans-serif; fill: #59636e } .name { font-size: 13px; font-weight: 600; fill: #1f2328 }
  .page { fill: #ffffff } .light { fill: #ddf4ff; stroke: #54aeff } .torch { fill: #fff1e5; stroke: #e08a2c }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .name { fill: #e6edf3 } .page { fill: #0d1117 }
    .light { fill: #0c2d4a; stroke: #2f6cb5 } .torch { fill: #3b2410; stroke: #b3691b }
  }
</style>
"""


def one_library(folder):
    """The library of a folder; a library counts as one layer."""
    if folder in COLLECTIVES:
        return "parallel/collectives"
    if folder in JOB:
        return "rpc/job"
    if folder in ("parallel/elastic/sharded", "parallel/elastic/pipeline"):  # libraries of their own
        return folder
    for library in ("rref", "dist_autograd", "parallel/data_parallel", "parallel/sharded", "parallel/pipeline", "parallel/elastic"):
        if folder.startswith(library + "/"):
            return library
    return "rpc" if folder in LAYERS["rpc"] else "dist_optim" if folder in DIST_OPTIM else folder


def used_directly(layers=None, present=None):
    """Of each layer that has sources: the layers that it uses without another one between."""
    layers = layers or LAYERS
    present = present or {one_library(layer) for path in cxx_files() if (layer := layer_of(str(path)))}
    uses = {layer: {one_library(other) for other in layers[layer]} & present - {layer} for layer in present}
    return {layer: {other for other in others if not any(other in uses[between] for between in others)}
            for layer, others in uses.items()}


def lies_on(layer, places):
    left, right, floor, *_ = places[layer]
    return {other for other, (start, end, under, *_) in places.items()
            if under + 1 == floor and start < right and left < end}


def name_lines(layer, width):
    """The name in one line if it fits, otherwise with its last folder in another line."""
    return [layer] if NAME * len(layer) <= width else [part + "/" * (i == 0) for i, part in enumerate(layer.rsplit("/", 1))]


def problems_of(places, uses):
    for layer, (left, right, _, *words) in places.items():
        width = (right - left) * (WIDTH - 2 * MARGIN) / 100 - 2 * GAP
        if any(NAME * len(line) > width for line in name_lines(layer, width)) or any(WORDS * len(line) > width for line in words):
            yield f"the text of {layer} does not fit into its box of {width:.0f}: shorten it in tests/checks/layers_picture.py"
    for layer in sorted(uses.keys() | places.keys()):
        if layer not in uses:
            yield f"{layer} has no sources: remove it from PLACES in tests/checks/layers_picture.py"
        elif layer not in places:
            yield f"{layer} has no place in the picture of the layers: add it to PLACES in tests/checks/layers_picture.py"
        elif (under := lies_on(layer, places) | ALSO_USES.get(layer, set())) != uses[layer]:
            yield (f"{layer} lies on {', '.join(sorted(under)) or 'nothing'} in the picture of the layers, but uses "
                   f"{', '.join(sorted(uses[layer])) or 'nothing'}: move it in tests/checks/layers_picture.py")


def picture(places=PLACES):
    floors = 1 + max(floor for _, _, floor, *_ in places.values())
    height = floors * FLOOR + 2 * MARGIN
    size = f'width="{WIDTH}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>\n{STYLE}<rect {size} class="page"/>\n']

    def box(x, y, width, high, kind):
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{high:.1f}" rx="5" class="{kind}"/>')

    def text(x, y, words, kind="", anchor="middle"):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind and f" class={kind!r}"}>{words}</text>')

    percent = (WIDTH - 2 * MARGIN) / 100
    for layer, (left, right, floor, *words) in places.items():
        x, y = MARGIN + left * percent, height - MARGIN - (floor + 1) * FLOOR
        box(x + GAP, y + GAP, (right - left) * percent - 2 * GAP, FLOOR - 2 * GAP,
            "light" if layer in WITHOUT_TORCH else "torch")
        middle = x + (right - left) * percent / 2
        names = name_lines(layer, (right - left) * percent - 2 * GAP)
        top = y + 37 - 8 * len(names)
        for line, name in enumerate(names):
            text(middle, top + 15 * line, name, "name")
        for line, word in enumerate(words):
            text(middle, top + 15 * len(names) + 14 * line, word)
        parts.append("\n")
    for line, (kind, words) in enumerate([("light", "needs no LibTorch"), ("torch", "needs LibTorch")]):
        y = MARGIN + 8 + 22 * line
        box(MARGIN + GAP, y, 14, 14, kind)
        text(MARGIN + 26, y + 11, words, anchor="start")
    text(MARGIN + GAP, MARGIN + 8 + 22 * 2 + 11, "A layer uses the layers below it.", anchor="start")
    return "".join([*parts, "\n</svg>\n"])


def main():
    problems = list(problems_of(PLACES, used_directly()))
    if not problems and "--write" in sys.argv[1:]:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(picture())
    elif not problems and (not PICTURE.exists() or PICTURE.read_text() != picture()):
        problems.append("docs/images/layers.svg is out of date: run tests/checks/layers_picture.py --write")
    print("\n".join(problems) if problems else f"{len(PLACES)} layers in their places")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
