# Precompiled headers, and the options of all programs over the layers, including tests and tools.

# Development builds optimise the layers alone: at -O1, tests, tools and examples take twice as long to compile.
set(weft_program_options)
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(weft_program_options -O0)
endif()

# Headers that nearly every source reads are precompiled once: torch/torch.h costs a file 12 s, torch/nn/module.h 10 s,
# weft's 2 s. weft_add_pch makes them, NAME, from HEADERS as targets that link LINK see them, with the OPTIONS;
# weft_use_pch is for such targets, and gives them these options.
function(weft_add_pch NAME HEADERS LINK)  # OPTIONS...
  set(source "${PROJECT_BINARY_DIR}/${NAME}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "static_assert(true);\n")
  add_library(${NAME} OBJECT "${source}")
  target_link_libraries(${NAME} PRIVATE ${LINK})
  # For ccache: what g++ reads is to be preprocessed, and clang's header not to hold a time.
  target_compile_options(${NAME} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>"
                         "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>" ${ARGN})
  target_precompile_headers(${NAME} PRIVATE ${HEADERS})
  set_target_properties(${NAME} PROPERTIES EXCLUDE_FROM_ALL ON UNITY_BUILD OFF)
endfunction()
function(weft_use_pch TARGET PCH)
  if(TARGET ${PCH})
    target_compile_options(${TARGET} PRIVATE $<TARGET_PROPERTY:${PCH},COMPILE_OPTIONS>)
    target_precompile_headers(${TARGET} REUSE_FROM ${PCH})
  endif()
endfunction()
