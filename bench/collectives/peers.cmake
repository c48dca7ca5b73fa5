# Additional parts of bench_collectives: the program that mpirun starts. It is skipped if OpenMPI is missing.

if(NOT TARGET bench_collectives)
  return()
endif()

# Debian's openmpi-bin has the compiler's wrapper without the headers: FindMPI then fails the whole configuration.
find_program(WEFT_MPICXX mpicxx)
mark_as_advanced(WEFT_MPICXX)
set(mpi_folders)
if(WEFT_MPICXX)
  execute_process(COMMAND "${WEFT_MPICXX}" --showme:incdirs OUTPUT_VARIABLE mpi_folders
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  separate_arguments(mpi_folders)
endif()
find_path(WEFT_MPI_HEADERS mpi.h PATHS ${mpi_folders})
mark_as_advanced(WEFT_MPI_HEADERS)
if(WEFT_MPI_HEADERS)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(TARGET MPI::MPI_CXX)
  weft_bench(collectives_openmpi LINK MPI::MPI_CXX SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/collectives/openmpi/main.cc")
  add_dependencies(bench_collectives bench_collectives_openmpi)
  target_compile_definitions(bench_collectives PRIVATE
    WEFT_BENCH_OPENMPI="$<TARGET_FILE:bench_collectives_openmpi>")
else()
  message(STATUS "weft: bench_collectives is without openmpi: it needs libopenmpi-dev and openmpi-bin")
endif()
