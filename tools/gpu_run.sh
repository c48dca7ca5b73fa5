#!/usr/bin/env bash
# Runs the GPU tests of its folder, which tools/gpu_check.sh has built, over the PyTorch of python3, and prints one paragraph for
# docs/gpu.md. The tests' output goes to FOLDER (default: results), and so to standard error where a test fails.
#
#   run.sh [FOLDER]
set -uo pipefail
results=$(mkdir -p "${1:-results}" && cd "${1:-results}" && pwd)
cd "$(dirname "$0")" || exit
torch=$(python3 -c 'import torch; print(torch.__path__[0])') || exit 1
WEFT_NCCL=$(find "$(dirname "$torch")/nvidia" -name libnccl.so.2 -print -quit)
export WEFT_NCCL LD_LIBRARY_PATH=$PWD/lib:$torch/lib
failed=0
for test in *_gpu_test; do
  timeout -k 5 300 "./$test" "--gtest_output=xml:$results/$test.xml" >"$results/$test.log" 2>&1 ||
    { failed=1; cat "$results/$test.log" >&2; }
done
python3 - "$results" "$(cat commit)" <<'END_OF_PYTHON'
import datetime, pathlib, subprocess, sys, xml.etree.ElementTree as xml
import torch

gpus = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                      capture_output=True, text=True).stdout.strip().splitlines()
nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(f"\n{datetime.date.today()}, {sys.argv[2]}, {len(gpus)} × {gpus[0]}, LibTorch {torch.__version__}, NCCL {nccl}:\n")
print("| tests | passed | skipped | failed |\n|---|---|---|---|")
for report in sorted(pathlib.Path(sys.argv[1]).glob("*_gpu_test.xml")):
    cases = list(xml.parse(report).getroot().iter("testcase"))
    ran = [c for c in cases if c.get("status") == "run"]
    name = lambda c: f"{c.get('classname')}.{c.get('name')}"
    skipped = [name(c) for c in ran if c.find("skipped") is not None]
    failed = [name(c) for c in ran if c.find("failure") is not None]
    passed = len(ran) - len(skipped) - len(failed)
    print(f"| {report.stem} | {passed} | {', '.join(skipped) or 'none'} | {', '.join(failed) or 'none'} |")
END_OF_PYTHON
exit "$failed"
