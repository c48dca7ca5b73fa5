#!/usr/bin/env python3
"""docs/images/layers.svg shows the layers of include_order.py: each one lies on exactly those that it uses directly.

  layers_picture.py           checks the places below, and that the picture is what they give
  layers_picture.py --write   draws it
"""
import sys

from include_order import COLLECTIVES, DIST_OPTIM, LAYERS, WITHOUT_TORCH, layer_of
from sources import ROOT, cxx_files

PICTURE = ROOT / "docs" / "images" / "layers.svg"

# Layer -> its left and right edge in percent, its floor, and what it holds. The folders of one library count as one layer.
PLACES = {
    "rpc": (0, 100, 0, "agents, typed methods, futures, streams, transports, membership", "Asio, Cap'n Proto, OpenSSL"),
    "rpc/testing": (0, 12, 1, "agents in a process,", "simulated networks"),
    "rpc/observe": (12, 25, 1, "logs, metrics, probes", "spdlog, Prometheus"),
    "parallel/schedule": (25, 38, 1, "schedules of", "pipelines"),
    "parallel/partition": (25, 38, 2, "cuts of models", "into stages"),
    "parallel/planner": (25, 38, 3, "splits of ranks", "into dimensions"),
    "rref": (38, 51, 1, "remote references,", "ownership protocol"),
    "rpc/tensor": (51, 68, 1, "tensors as arguments,", "device maps, operators"),
    "parallel/collectives/flight": (68, 100, 1, "flight recorder", "of collectives"),
    "dist_autograd": (38, 66, 2, "backward passes across agents,", "smart and fast mode"),
    "parallel/collectives": (66, 100, 2, "process groups and collectives:", "shared memory, messages, NCCL"),
    "parallel/tensor_parallel": (60, 84, 4, "layers split", "over the ranks"),
    "parallel/elastic": (84, 100, 4, "workers that join", "and die"),
    "parallel/elastic/sharded": (84, 100, 5, "also of sharded state,", "and on parallel/sharded"),
    "parallel/sharded": (60, 84, 5, "parameters and optimizers split over", "the ranks; checkpoints; also on dist_optim"),
    "parallel/pipeline": (60, 84, 6, "models in stages by a schedule;", "also on parallel/partition"),
    "dist_optim": (38, 60, 3, "optimizers next to", "remote parameters"),
    "parallel/data_parallel": (60, 100, 3, "data parallel training:", "buckets of gradients, reduced during backward"),
    "dist_optim/embedding": (38, 48, 4, "tables of rows,", "spread over owners"),
}
# Used, but not below: there is no room in the plane. The box says it in words.
ALSO_USES = {"parallel/sharded": {"dist_optim"}, "parallel/pipeline": {"parallel/partition"},
             "parallel/elastic/sharded": {"parallel/sharded"}}

WIDTH, FLOOR, MARGIN, GAP = 860, 68, 12, 3
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
    if folder == "parallel/elastic/sharded":  # a library of its own
        return folder
    for library in ("parallel/data_parallel", "parallel/sharded", "parallel/elastic"):
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


def problems_of(places, uses):
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
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>\n{STYLE}<rect {size} class="page"/>']

    def box(x, y, width, high, kind):
        lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{high:.1f}" rx="5" class="{kind}"/>')

    def text(x, y, words, kind="", anchor="middle"):
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind and f" class={kind!r}"}>{words}</text>')

    percent = (WIDTH - 2 * MARGIN) / 100
    for layer, (left, right, floor, *words) in places.items():
        x, y = MARGIN + left * percent, height - MARGIN - (floor + 1) * FLOOR
        box(x + GAP, y + GAP, (right - left) * percent - 2 * GAP, FLOOR - 2 * GAP,
            "light" if layer in WITHOUT_TORCH else "torch")
        middle = x + (right - left) * percent / 2
        text(middle, y + 24, layer, "name")
        for line, word in enumerate(words):
            text(middle, y + 40 + 14 * line, word)
    for line, (kind, words) in enumerate([("light", "needs no LibTorch"), ("torch", "needs LibTorch")]):
        y = MARGIN + 8 + 22 * line
        box(MARGIN + GAP, y, 14, 14, kind)
        text(MARGIN + 26, y + 11, words, anchor="start")
    text(MARGIN + GAP, MARGIN + 8 + 22 * 2 + 11, "A layer uses the layers below it.", anchor="start")
    return "\n".join([*lines, "</svg>\n"])


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
