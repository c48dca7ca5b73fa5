#!/usr/bin/env bash
# States how many of the decoders' branches the tests take: builds weft::rpc and its unit tests with gcov in
# build/coverage, runs them and prints gcovr's table for the sources that read bytes from outside (rpc/wire, rpc/codec
# and the frame reader), without the branches that only an exception out of a called function takes. Headers are left
# out: gcov does not mark those branches in instances of a template that never ran.
#
#   tools/coverage.sh [FILTER]   of GoogleTest, e.g. '*MutatedFrames*' (default: all of rpc_test)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=build/coverage

cmake -S . -B $build -G Ninja --log-level=WARNING -DWEFT_TORCH=OFF -DWEFT_EXAMPLES=OFF -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS="--coverage -O0 -fprofile-update=atomic" -DCMAKE_CXX_FLAGS_DEBUG=-g1
cmake --build $build --target rpc_test
find $build -name '*.gcda' -delete
$build/tests/rpc_test --gtest_brief=1 --gtest_filter="${1:-*}" || echo "coverage: some tests failed" >&2
gcovr --root . $build --branches --exclude-throw-branches --exclude-unreachable-branches -j "$(nproc)" \
  --filter 'rpc/(wire|codec)/[^/]*\.cc' --filter 'rpc/transport/frame_reader\.cc' --exclude 'tests/' 2>/dev/null
