#include <weft/rpc/job/run_job.h>

#include <weft/rpc/core/parse_number.h>
#include <weft/rpc/job/environment.h>
#include <weft/rpc/job/internal/local_processes.h>
#include <weft/rpc/job/job_place.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>

namespace weft::rpc::detail {
namespace {

constexpr std::size_t max_processes = 1024;

std::string title_of(const Job& job) {
  return job.rank() == Rendezvous::no_rank ? job.name()
                                           : job.name() + " (rank " + std::to_string(job.rank()) + ")";
}

int run_member(const std::string& program, Layers layers, const std::function<void(Job&)>& body,
               const JobOptions& options) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // Destroyed after the report of an error, so that peers detect and report the end of this member later.
  std::optional<Job> job;
  try {
    MemberOptions member_options = from_environment();
    if (options.adjust) options.adjust(member_options);
    job.emplace(member_options, std::move(layers));
    body(*job);
    job->serve_until_shutdown();
    return 0;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    std::fprintf(stderr, "%s: %s\n", (job ? title_of(*job) : program).c_str(),
                 std::string(text.substr(0, text.find('\n'))).c_str());
    return 1;
  }
}

// Whether the argument is -nN. Other arguments that begin with -n are options of the program.
bool has_number(const std::string& argument) {
  return argument.starts_with("-n") && argument.size() > 2 && argument[2] >= '0' && argument[2] <= '9';
}

int start_members(const std::string& program, const std::vector<std::string>& arguments,
                  std::size_t processes) {
  const auto end_of_options = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> others;
  for (auto argument = arguments.begin(); argument != end_of_options; ++argument) {
    std::string text;
    if (has_number(*argument)) {
      text = argument->substr(2);
    } else if (*argument != "-n") {
      others.push_back(*argument);
      continue;
    } else if (argument + 1 != end_of_options) {
      text = *++argument;
    }
    const auto number = parse_number<std::size_t>(text);
    if (!number || *number == 0 || *number > max_processes) {
      std::fprintf(stderr, "%s: -n '%s' is not a number of processes from 1 to %zu\n", program.c_str(),
                   text.c_str(), max_processes);
      return 2;
    }
    processes = *number;
  }
  others.insert(others.end(), end_of_options, arguments.end());
  return run_processes(processes, others);
}

}  // namespace

int run_job(int argc, char** argv, Layers layers, const std::function<void(Job&)>& body,
            const JobOptions& options) {
  const std::string path = argc > 0 ? argv[0] : "weft", program = path.substr(path.rfind('/') + 1);
  if (started_by()) return run_member(program, std::move(layers), body, options);
  return start_members(
      program, argc > 0 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>{},
      options.processes);
}

}  // namespace weft::rpc::detail
