// Command lines of a shell.
#pragma once

#include <string>
#include <string_view>

namespace weft::tool {

// The word for a command line, in quotes if it needs them.
std::string shell_word(std::string_view word);

}  // namespace weft::tool
