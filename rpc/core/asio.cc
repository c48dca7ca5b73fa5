// Asio's sources, compiled once here instead of in every file that includes Asio (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
