# What bench_collectives has beside its sources: the program that mpirun starts, left out where OpenMPI is missing.

if(NOT TARGET bench_collectives)
  return()
endif()
target_compile_definitions(bench_collectives PRIVATE WEFT_BENCH_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")

find_package(MPI QUIET COMPONENTS CXX)
if(TARGET MPI::MPI_CXX)
  weft_bench(collectives_openmpi LINK MPI::MPI_CXX SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/collectives/openmpi/main.cc")
  add_dependencies(bench_collectives bench_collectives_openmpi)
  target_compile_definitions(bench_collectives PRIVATE
    WEFT_BENCH_OPENMPI="$<TARGET_FILE:bench_collectives_openmpi>")
else()
  message(STATUS "weft: bench_collectives is without openmpi: it needs libopenmpi-dev and openmpi-bin")
endif()
