// WEFT_EXPORT marks the symbols that the shared libraries export; other symbols are hidden.
#pragma once

#define WEFT_EXPORT __attribute__((visibility("default")))
