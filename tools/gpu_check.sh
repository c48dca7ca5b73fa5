#!/usr/bin/env bash
# Builds the tests with the label `gpu` over each LibTorch, runs them, and writes the results at the end of docs/gpu.md.
#
#   tools/gpu_check.sh [LIBTORCH-VERSION...]     for example 2.11.0 2.15.0; default: the one that ./dev uses
#   tools/gpu_check.sh --build-only VERSION      on a machine without a GPU: prints the folder with the tests
#   FOLDER/run.sh                                on a machine with a GPU and that PyTorch, after the folder was copied there:
#                                                runs them and prints the results
#
# Needs nvcc. Each LibTorch comes from the package index, with CUDA's libraries and NCCL, into out/gpu-VERSION, several GB each.
set -euo pipefail
root=$(git -C "$(dirname "$(readlink -f "$0")")" rev-parse --show-toplevel)
cd "$root"

die() { echo "gpu_check: $*" >&2; exit 1; }

build_tests() {  # VERSION -> the tests with what they need in out/gpu-VERSION/tests
  local version=$1 venv=out/gpu-$1/venv build=build/cuda-$1 tests=out/gpu-$1/tests
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install --disable-pip-version-check --quiet "torch==$version"
  local packages
  packages=$(readlink -f "$root/$venv"/lib/python3*/site-packages)
  cmake --preset cuda -B "$build" -DCMAKE_UNITY_BUILD=ON "-DWEFT_LIBTORCH=$packages/torch" \
    "-DWEFT_NCCL_INCLUDE_DIR=$packages/nvidia/nccl/include" >/dev/null
  local names
  names=$(ninja -C "$build" -t targets all | sed -n '/^cmake_object/d; s/^\([a-z_]*_gpu_test\): phony$/\1/p')
  # shellcheck disable=SC2086
  cmake --build "$build" -j "$(nproc)" --target $names >&2
  rm -rf "$tests"
  mkdir -p "$tests/lib"
  local name
  for name in $names; do strip -o "$tests/$name" "$build/tests/$name"; done
  # Of Debian's packages; the rest is LibTorch's, or on every machine.
  ldd "$tests"/*_gpu_test | awk '/libcapnp|libkj|libspdlog|libfmt/ {print $3}' | sort -u | xargs cp -Lt "$tests/lib"
  cp tools/gpu_run.sh "$tests/run.sh"
  git rev-parse --short HEAD >"$tests/commit"
  echo "$tests"
}

case ${1:-} in
  --build-only)
    [ $# = 2 ] || die 'expected --build-only VERSION'
    build_tests "$2"
    exit 0 ;;
  -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
nvidia-smi -L 2>/dev/null | grep -q GPU || die 'this machine has no GPU: use --build-only'
command -v nvcc >/dev/null || die 'nvcc is not in the path'

versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=("$(sed -n 's/^torch_version=//p' dev)")
./dev setup
seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
failed=0
for version in "${versions[@]}"; do
  tests=$(build_tests "$version")
  PATH=$root/out/gpu-$version/venv/bin:$PATH "$tests/run.sh" | tee -a "$seen" || failed=1
done

python3 - "$seen" <<'END_OF_PYTHON'
import pathlib, sys
page = pathlib.Path("docs/gpu.md")
heading = "## Results of tools/gpu_check.sh\n"
page.write_text(page.read_text().split(heading)[0] + heading + pathlib.Path(sys.argv[1]).read_text())
END_OF_PYTHON
exit "$failed"
