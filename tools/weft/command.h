// Command: one subcommand of `weft`. A Command has the options for CLI11 and the function that runs the
// command. Each subcommand has its own source file; main.cc lists them all. Thread-safety: used by one
// thread.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <string>

#include "tools/weft/client.h"
#include "tools/weft/errors.h"

namespace weft::tool {

struct Command {
  CLI::App* app = nullptr;
  std::function<Exit()> run;  // called when the command line has been parsed; throws the error
  // Only for a subcommand whose arguments are another command: receives the first "--" of the command line
  // and all words after it.
  std::shared_ptr<std::vector<std::string>> rest = nullptr;
};

// Each function adds its subcommand to the program.
Command add_list(CLI::App& program);
Command add_call(CLI::App& program);
Command add_ping(CLI::App& program);
Command add_health(CLI::App& program);
Command add_top(CLI::App& program);
Command add_hang(CLI::App& program);
Command add_trace(CLI::App& program);
Command add_rrefs(CLI::App& program);
Command add_dash(CLI::App& program);
Command add_flight(CLI::App& program);
Command add_launch(CLI::App& program);
Command add_schedule(CLI::App& program);
Command add_partition(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_weights(CLI::App& program);

// The options of all subcommands that call agents.
struct AskedAgent {
  std::string address;
  std::string timeout = "30s";
  bool verbose = false;
  rpc::CredentialOptions credentials;

  void add_to(CLI::App& command);
  // Makes the client. This object owns the client, and the command does not, so that the program can exit
  // while the client still waits (for a name server).
  Client& connect();  // throws UsageError

 private:
  std::shared_ptr<Client> client_;
};

// --- Files and output ---

std::string read_file(const std::string& path);                     // throws UsageError
void write_file(const std::string& path, const std::string& text);  // throws UsageError

bool stdout_is_terminal();
std::size_t terminal_width();
std::size_t terminal_height();

}  // namespace weft::tool
