#!/usr/bin/env bash
# starter_test.sh no_torch|shared|torch|deb BUILD LIBTORCH: installs weft from the build tree BUILD into a folder, copies
# examples/starter next to it as a user would, builds it against that installation alone, and runs it. `deb` unpacks the
# Debian packages of the shared libraries instead, and builds that and examples/embedded_service without CMake, by
# pkg-config. `./dev test --full` installs the packages on a bare Debian.
set -euo pipefail
kind=$1 build=$2 libtorch=${3:-}
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$build/starter/$kind
rm -rf "$work"
mkdir -p "$work"
unset WEFT_LIBTORCH

components=(rpc rref testing)
case $kind in
  no_torch) ;;
  torch) components+=(job flight tensor dist_autograd collectives training data_parallel) ;;
  shared|deb)
    # Kept between runs: only changed files are compiled again. This test does not measure speed.
    cmake -S "$source" -B "$build/starter_shared" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DBUILD_SHARED_LIBS=ON \
      -DWEFT_WERROR=ON -DWEFT_TORCH=OFF -DWEFT_TESTS=OFF -DWEFT_EXAMPLES=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
    cmake --build "$build/starter_shared" -j 2
    build=$build/starter_shared ;;
esac
if [ "$kind" = deb ]; then
  (cd "$work" && cpack -G DEB --config "$build/CPackConfig.cmake" >/dev/null)
  for package in "$work"/*.deb; do
    dpkg-deb --info "$package" | grep -E '^ (Package|Version|Depends):'
    dpkg-deb -x "$package" "$work/system"
  done
  expect_depends() {  # PACKAGE NEEDED...
    local depends needed
    depends=", $(dpkg-deb --field "$work/$1"_*.deb Depends),"
    for needed in "${@:2}"; do
      [[ $depends =~ ,\ $needed(\ \(|,) ]] || { echo "$1 does not depend on $needed: ${depends:2}"; exit 1; }
    done
  }
  expect_depends libweft-rpc-dev libasio-dev libcapnp-dev libssl-dev libc6
  expect_depends libweft-job-dev libweft-rpc-dev libcurl4-openssl-dev
  expect_depends libweft-rref-dev libweft-rpc-dev
  expect_depends weft libweft-planner-dev libweft-rref-dev libweft-job-dev
  observe=$(find "$work/system" -name weft-observe.pc)
  if [ -n "$observe" ]; then
    expect_depends libweft-observe-dev libweft-rpc-dev libspdlog-dev prometheus-cpp-dev libcivetweb-dev
    expect_depends weft libweft-observe-dev
  fi
  libdir=$(dirname "$(find "$work/system" -name 'libweft_rpc.so')")
  soname=$(objdump -p "$libdir/libweft_rpc.so" | awk '$1 == "SONAME" {print $2}')
  version=$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --modversion weft-rref)
  [ "$soname" = "libweft_rpc.so.${version%.*}" ] || { echo "SONAME $soname of version $version"; exit 1; }
  export PKG_CONFIG_PATH=$libdir/pkgconfig
  read -ra flags <<<"$(pkg-config --cflags --libs weft-rref)"
  g++ -std=c++20 -O1 "$source/examples/starter/main.cc" -o "$work/main" "${flags[@]}"
  LD_LIBRARY_PATH=$libdir "$work/main"
  if [ -n "$observe" ]; then  # as docs/embedding.md states
    read -ra flags <<<"$(pkg-config --cflags --libs weft-observe)"
    g++ -std=c++20 -O0 "$source"/examples/embedded_service/*.cc -o "$work/service" "${flags[@]}"
    if readelf -d "$work/service" | grep -E 'NEEDED.*lib(torch|c10)'; then echo 'the service links LibTorch'; exit 1; fi
  fi
  "$work/system/usr/bin/weft" --version  # finds its libraries without further options
  exit
fi
for component in "${components[@]}"; do
  cmake --install "$build" --prefix "$work/weft" --component "$component" >/dev/null
done

cp -r "$source/examples/starter" "$work/project"
arguments=(-DCMAKE_PREFIX_PATH="$work/weft" -DCMAKE_CXX_FLAGS_RELEASE=-O0)  # compiles faster
targets=(all)
if [ "$kind" = torch ]; then  # the programs without LibTorch are those of no_torch
  arguments+=(-DWEFT_LIBTORCH="$libtorch")
  targets=(starter_train)
fi
cmake -S "$work/project" -B "$work/project/build" -G Ninja "${arguments[@]}"
cmake --build "$work/project/build" -j 2 --target "${targets[@]}"

run() { echo "== $1"; "$work/project/build/$1"; }
if [ "$kind" = torch ]; then
  run starter_train | sort | tee "$work/trained"
  printf 'rank %d: the sum of the weights is 3.0000\n' 0 1 | diff - <(grep rank "$work/trained")
else
  run starter
  ctest --test-dir "$work/project/build" --output-on-failure --no-tests=error
  # LibTorch is neither installed nor linked.
  if find "$work/weft" | grep -E 'tensor|autograd|optim'; then echo 'these files need LibTorch'; exit 1; fi
  if ldd "$work/project/build/starter" | grep -E 'lib(torch|c10)'; then echo 'starter links LibTorch'; exit 1; fi
fi
if [ "$kind" = shared ]; then
  ldd "$work/project/build/starter" | grep libweft_rpc
fi
