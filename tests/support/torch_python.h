// A Python with PyTorch, whose results tests compare with those of weft: $WEFT_TORCH_PYTHON, otherwise the
// Python of .venv.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::test {

// Runs a script of this source tree: SCRIPT ARGUMENTS... Returns an empty string, or the reason why this
// machine cannot run it: there is no such Python, or the script ended with status 77. Any other status is an
// exception.
inline std::string run_torch_python(const std::string& source_dir, const std::string& script,
                                    const std::vector<std::string>& arguments) {
  const char* const chosen = std::getenv("WEFT_TORCH_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : source_dir + "/.venv/bin/python";
  if (::access(python.c_str(), X_OK) != 0) return "there is no Python at " + python + " (WEFT_TORCH_PYTHON)";
  std::vector<std::string> words{python, source_dir + "/" + script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid) throw std::runtime_error("cannot run " + python);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    return python + " cannot run " + script + ": see above (WEFT_TORCH_PYTHON)";
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(script + " ended with " + std::to_string(status));
  return "";
}

// The destructor removes the folder and its files.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a folder " + path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
};

}  // namespace weft::test
