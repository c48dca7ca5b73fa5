#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/target.h"

namespace weft::fuzz {

void fail(const std::string& why) {
  std::fprintf(stderr, "fuzz: %s\n", why.c_str());
  std::abort();
}

}  // namespace weft::fuzz
