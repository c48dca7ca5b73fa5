// Command lines of a shell.
#pragma once

#include <string>
#include <string_view>

namespace weft::tool {

// A word of a command line, in quotes where it needs them.
std::string shell_word(std::string_view word);

}  // namespace weft::tool
