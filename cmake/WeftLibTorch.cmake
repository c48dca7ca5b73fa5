# weft::libtorch: LibTorch's CPU libraries as one imported target.
#
# find_package(Torch) is not used: for the PyPI wheel it wants a CUDA toolkit and links libtorch_cuda.so, which
# fails against a system NCCL older than the wheel's. libtorch_cpu.so and libc10.so are all that weft needs.
#
# The places to search for LibTorch; the first match wins:
#   WEFT_LIBTORCH (cache, then environment)   the wheel's `torch` folder or an unpacked LibTorch
#   CMAKE_PREFIX_PATH                         also as printed by `torch.utils.cmake_prefix_path`
#   weft_libtorch_defaults                    set by the file that includes this one
# If no LibTorch is found, weft_libtorch_problem holds the reason, and the target does not exist.
#
# This file is installed too: the package configuration of weft includes it for the components that need it.

if(TARGET weft::libtorch)
  return()
endif()

set(WEFT_LIBTORCH "" CACHE PATH "LibTorch: the wheel's `torch` folder or an unpacked LibTorch")

set(_weft_candidates)
if(WEFT_LIBTORCH)
  set(_weft_candidates "${WEFT_LIBTORCH}")
elseif(DEFINED ENV{WEFT_LIBTORCH} AND NOT "$ENV{WEFT_LIBTORCH}" STREQUAL "")
  set(_weft_candidates "$ENV{WEFT_LIBTORCH}")
else()
  foreach(_weft_prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND _weft_candidates "${_weft_prefix}" "${_weft_prefix}/../..")
  endforeach()
  list(APPEND _weft_candidates ${weft_libtorch_defaults})
endif()

set(weft_libtorch_root "")
foreach(_weft_candidate IN LISTS _weft_candidates)
  if(EXISTS "${_weft_candidate}/lib/libtorch_cpu.so" AND EXISTS "${_weft_candidate}/include/ATen/ATen.h")
    get_filename_component(weft_libtorch_root "${_weft_candidate}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    break()
  endif()
endforeach()

if(NOT weft_libtorch_root)
  if(_weft_candidates)
    list(JOIN _weft_candidates "\n    " _weft_looked)
  else()
    set(_weft_looked "(nowhere)")
  endif()
  string(CONCAT weft_libtorch_problem
    "LibTorch was not found. Give its folder (with lib/libtorch_cpu.so and include/) as WEFT_LIBTORCH.\n"
    "  Looked in:\n    ${_weft_looked}")
  return()
endif()

set(weft_libtorch_version "")
foreach(_weft_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(weft_libtorch_version STREQUAL "" AND EXISTS "${weft_libtorch_root}/include/${_weft_header}")
    file(READ "${weft_libtorch_root}/include/${_weft_header}" _weft_text)
    if(_weft_text MATCHES "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+)")
      set(weft_libtorch_version "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    endif()
  endif()
endforeach()
if(weft_libtorch_version AND weft_libtorch_version VERSION_LESS 2.11)
  set(weft_libtorch_problem "weft needs LibTorch 2.11 or later; ${weft_libtorch_root} is ${weft_libtorch_version}")
  return()
endif()

find_package(Threads REQUIRED)

add_library(weft::c10 SHARED IMPORTED)
set_target_properties(weft::c10 PROPERTIES IMPORTED_LOCATION "${weft_libtorch_root}/lib/libc10.so")
add_library(weft::libtorch SHARED IMPORTED)
set_target_properties(weft::libtorch PROPERTIES
  IMPORTED_LOCATION "${weft_libtorch_root}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES
    "${weft_libtorch_root}/include;${weft_libtorch_root}/include/torch/csrc/api/include"
  # As LibTorch itself was built: some of its headers change with these.
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
  INTERFACE_LINK_LIBRARIES "weft::c10;Threads::Threads")
message(STATUS "weft: LibTorch ${weft_libtorch_version} in ${weft_libtorch_root}")
