# weft_nccl_headers: the headers of NCCL and CUDA, for the test that compares weft's declarations with them. weft
# itself needs neither: it loads NCCL at run time.
#
# The places to search for nccl.h; the first match wins:
#   WEFT_NCCL_INCLUDE_DIR (cache)     the folder that holds it
#   .venv                             of the wheel nvidia-nccl-cu13
#   the folders of the CUDA toolkit, and the system's include folders
# If a header is missing, weft_nccl_headers is empty, and weft_nccl_problem describes the problem.

set(weft_nccl_headers "")
find_package(CUDAToolkit QUIET)
file(GLOB _weft_nccl_hints "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include")
find_path(WEFT_NCCL_INCLUDE_DIR nccl.h HINTS ${_weft_nccl_hints} ${CUDAToolkit_INCLUDE_DIRS}
          DOC "The folder that holds nccl.h")
if(NOT CUDAToolkit_FOUND)
  set(weft_nccl_problem "there is no CUDA toolkit")
elseif(NOT WEFT_NCCL_INCLUDE_DIR)
  set(weft_nccl_problem "there is no nccl.h: give its folder as WEFT_NCCL_INCLUDE_DIR")
else()
  set(weft_nccl_headers "${WEFT_NCCL_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
  message(STATUS "weft: nccl.h in ${WEFT_NCCL_INCLUDE_DIR}")
endif()
