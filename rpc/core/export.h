// WEFT_EXPORT marks what the shared libraries show: libraries are built with hidden visibility.
#pragma once

#define WEFT_EXPORT __attribute__((visibility("default")))
