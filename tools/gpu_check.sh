#!/usr/bin/env bash
# On a machine with a GPU: builds the `cuda` preset, runs the tests with the label `gpu` over each LibTorch, and writes what
# was seen at the end of docs/gpu.md.
#
#   tools/gpu_check.sh [LIBTORCH-VERSION...]     for example 2.11.0 2.15.0; default: the one that ./dev uses
#
# Needs nvidia-smi, nvcc and NCCL's header. Each LibTorch comes from the package index, with CUDA's libraries and NCCL, into
# out/gpu-VERSION, several GB each. Never run yet.
set -euo pipefail
root=$(git -C "$(dirname "$(readlink -f "$0")")" rev-parse --show-toplevel)
cd "$root"

die() { echo "gpu_check: $*" >&2; exit 1; }
case ${1:-} in -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
nvidia-smi -L 2>/dev/null | grep -q GPU || die "this machine has no GPU"
command -v nvcc >/dev/null || die 'nvcc is not in the path'

versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=("$(sed -n 's/^torch_version=//p' dev)")
./dev setup
seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
{
  echo "$(date +%F), $(git rev-parse --short HEAD), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader |
    sort | uniq -c | awk '{$1 = $1 " ×"; print}' | paste -sd';'):"
  echo
  echo '| LibTorch | NCCL | run | skipped | failed |'
  echo '|---|---|---|---|---|'
} >"$seen"

failed=0
for version in "${versions[@]}"; do
  venv=out/gpu-$version build=build/cuda-$version
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install --disable-pip-version-check --quiet "torch==$version"
  packages=$(echo "$root/$venv"/lib/python3*/site-packages)
  nccl=$packages/nvidia/nccl
  cmake --preset cuda -B "$build" "-DWEFT_LIBTORCH=$packages/torch" "-DWEFT_NCCL_INCLUDE_DIR=$nccl/include" >/dev/null
  cmake --build "$build" -j "$(nproc)"
  results=$build/gpu.xml
  WEFT_NCCL=$nccl/lib/libnccl.so.2 ctest --test-dir "$build" -L gpu --output-on-failure --output-junit "$root/$results" || failed=1
  number=$("$venv/bin/python" -c 'import torch; print(*torch.cuda.nccl.version(), sep=".")')
  python3 - "$results" "$version" "$number" >>"$seen" <<'END'
import sys, xml.etree.ElementTree as xml
cases = list(xml.parse(sys.argv[1]).getroot().iter("testcase"))
names = lambda status: ", ".join(c.get("name") for c in cases if c.get("status") == status) or "none"
print(f"| {sys.argv[2]} | {sys.argv[3]} | {sum(c.get('status') == 'run' for c in cases)} | {names('notrun')} | {names('fail')} |")
END
done

python3 - "$seen" <<'END'
import pathlib, sys
page = pathlib.Path("docs/gpu.md")
heading = "## What tools/gpu_check.sh saw\n"
page.write_text(page.read_text().split(heading)[0] + heading + pathlib.Path(sys.argv[1]).read_text())
END
cat "$seen"
exit "$failed"
