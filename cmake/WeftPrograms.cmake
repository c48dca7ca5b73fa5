# Settings of all programs over the layers, including tests and tools: options and precompiled headers.

# Development builds optimise the layers alone: at -O1, tests, tools and examples take twice as long to compile.
set(weft_program_options)
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(weft_program_options -O0)
endif()

# Headers that nearly every test and example reads are precompiled once: torch/torch.h costs a file 12 s, weft's 2 s.
# weft_add_pch makes them, NAME, from HEADERS as targets that link LINK see them; weft_use_pch is for such targets.
function(weft_add_pch NAME HEADERS LINK)
  set(source "${PROJECT_BINARY_DIR}/${NAME}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "int main() {}\n")
  add_executable(${NAME} "${source}")
  target_link_libraries(${NAME} PRIVATE ${LINK})
  target_compile_options(${NAME} PRIVATE -fpch-preprocess ${weft_program_options})
  target_precompile_headers(${NAME} PRIVATE ${HEADERS})
  set_target_properties(${NAME} PROPERTIES EXCLUDE_FROM_ALL ON UNITY_BUILD OFF)
endfunction()
function(weft_use_pch TARGET PCH)
  if(TARGET ${PCH})
    target_compile_options(${TARGET} PRIVATE -fpch-preprocess ${weft_program_options})
    target_precompile_headers(${TARGET} REUSE_FROM ${PCH})
  endif()
endfunction()
