# Compiler flags of this tree alone: nothing here reaches an installed target. nvcc takes others: WeftCuda.cmake.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# Development builds are optimised lightly: -O1 -g1 compiles in half the time of -O2 -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# The API is designed for calls with designated initialisers, which name only the fields that differ from the
# default.
set(weft_host "$<COMPILE_LANGUAGE:C,CXX>")
add_compile_options("$<${weft_host}:-Wall;-Wextra;-Wpedantic;-Wno-missing-field-initializers>")
if(WEFT_WERROR)
  add_compile_options("$<${weft_host}:-Werror>")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # KiB; below that g++ spends a tenth of its time collecting garbage.
  add_compile_options("$<${weft_host}:--param=ggc-min-heapsize=524288>")
endif()

if(WEFT_SANITIZE STREQUAL "address")
  # vptr, null, alignment and object-size triple the compile time of template-heavy code.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=vptr,null,alignment,object-size
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options(-fno-sanitize=function)  # which coroutines break before clang 17: llvm-project issue 49689
  endif()
  add_link_options(-fsanitize=address,undefined)
elseif(WEFT_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # Asio uses fences, of which g++'s TSan warns
  endif()
elseif(NOT WEFT_SANITIZE STREQUAL "")
  message(FATAL_ERROR "WEFT_SANITIZE is empty, address or thread, not '${WEFT_SANITIZE}'")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND (WEFT_SANITIZE OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13))
  # False alarms: about instrumented coroutine frames, and of newer releases about a std::optional that is empty.
  add_compile_options(-Wno-maybe-uninitialized)
endif()

if(WEFT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "WEFT_FUZZ needs clang, for libFuzzer: CMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# clang checks the locks (rpc/core/mutex.h). It has coroutines, but older releases of Asio do not know it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12's std::stable_sort uses a function that it deprecates.
  add_compile_options("$<${weft_host}:-Wthread-safety;-Wno-deprecated-declarations>")
  add_compile_definitions(ASIO_HAS_CO_AWAIT ASIO_HAS_STD_COROUTINE)
endif()

find_program(WEFT_MOLD mold)
if(WEFT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness lets ccache serve files that use a precompiled header; with `depend` what is not in the cache is
  # preprocessed once, not twice.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${WEFT_CCACHE})
endif()
