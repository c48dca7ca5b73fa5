# weft's CUDA kernels, if WEFT_CUDA is on. Each *.cu file is in the folder of its users. Each kernel has a CPU version
# (*.cc) with bitwise equal results. Neither compiler may therefore fuse a multiplication with an addition, and nvcc may
# not approximate.
#
# weft_cuda_sources(TARGET source...): adds them to TARGET.

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 100)  # A100, H100, B100; the last one's PTX runs on what comes later
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and later have it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

function(weft_cuda_sources TARGET)
  target_sources(${TARGET} PRIVATE ${ARGN})
  set(options -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler=-Wall,-Wextra)
  if(WEFT_WERROR)
    list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()
