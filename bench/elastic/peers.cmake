# The programs that bench_elastic starts: the launcher, and the worker of its jobs.

if(NOT TARGET bench_elastic)
  return()
endif()

weft_bench(elastic_worker LINK weft::elastic SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/elastic/worker/main.cc")
add_dependencies(bench_elastic bench_elastic_worker weft)
target_compile_definitions(bench_elastic PRIVATE
  WEFT_BENCH_ELASTIC_WORKER="$<TARGET_FILE:bench_elastic_worker>" WEFT_BENCH_WEFT="$<TARGET_FILE:weft>"
  WEFT_BENCH_HOST_SHELL="${CMAKE_CURRENT_SOURCE_DIR}/elastic/host_shell.sh")
